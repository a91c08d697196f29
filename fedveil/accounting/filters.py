"""Placeholder until merge."""

from __future__ import annotations


class RenyiFilter:
    pass
