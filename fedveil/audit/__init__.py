"""Audit: a measured lower bound on ε, to hold against the certified one. `run` is the whole of it."""

from fedveil.audit.rows import AuditRow, check_certificates, run

__all__ = ["AuditRow", "check_certificates", "run"]
