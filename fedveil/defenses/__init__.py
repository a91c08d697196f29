"""Defences: filters in the round, one file each."""
