"""Attacks that infer what a model or an update was made from: its classes, its records, its clients, their properties."""
