"""Advice: a private setting for a federation of a given size, chosen and tried on a public stand-in."""
