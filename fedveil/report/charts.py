"""Charts as SVG text: lines, bars, heat maps and ROC curves. They need no other program, font or file.

    from fedveil.report.charts import Reference, Series, line_chart, write_svg
    text = line_chart(
        [Series("fed-cdp", rounds, accuracy, low, high)],
        title="Accuracy under Fed-CDP", x_label="round", y_label="test accuracy", references=[Reference("paper", 0.93)],
    )
    write_svg(Path("accuracy.svg"), text)

Put into an HTML page, a chart takes the page's text colour and its `color-scheme`, or colours of the page's own choice
(`--chart-1` … `--chart-6`). Alone, it is on white, or on dark for a reader who prefers that.
"""

from __future__ import annotations

from fedveil.report.bars import Bars, bar_chart
from fedveil.report.heat import heat_map
from fedveil.report.lines import Reference, Series, line_chart
from fedveil.report.roc import Allowed, Curve, roc_chart
from fedveil.report.svg import write_svg

__all__ = [
    "Allowed",
    "Bars",
    "Curve",
    "Reference",
    "Series",
    "bar_chart",
    "heat_map",
    "line_chart",
    "roc_chart",
    "write_svg",
]
