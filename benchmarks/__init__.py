"""Benchmarks: each compares two sides that take turns in one run. Part of the source checkout, not of the wheel."""
