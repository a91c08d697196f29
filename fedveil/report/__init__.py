"""Results for readers: charts, tables, and the HTML report."""
