"""What is shown of results: charts as SVG, and tables."""
