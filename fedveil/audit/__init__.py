"""Audit: measured lower bounds on ε and tests of the noise, to hold against the certificate.

The package is callable: `fedveil.audit(...)` is `fedveil.audit.run.audit(...)`.
"""

from fedveil.audit.rows import AuditRow, check_certificates
from fedveil.audit.run import audit
from fedveil.core.system import make_callable

__all__ = ["AuditRow", "audit", "check_certificates"]

make_callable(__name__)
