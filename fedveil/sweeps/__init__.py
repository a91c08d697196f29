"""Sweeps: one config trained with every combination of some values, accounted, attacked and compared."""
