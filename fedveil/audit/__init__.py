"""Audit: measured lower bounds on ε and tests of the noise, to hold against the certificate. `run` is the whole of it."""

from fedveil.audit.rows import AuditRow, check_certificates
from fedveil.audit.run import run

__all__ = ["AuditRow", "check_certificates", "run"]
