"""Results for readers: charts, tables, and the HTML report.

The package is callable: `fedveil.report(...)` is `fedveil.report.write.report(...)`.
"""

from fedveil.core.system import make_callable
from fedveil.report.write import report

__all__ = ["report"]

make_callable(__name__)
