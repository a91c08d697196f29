"""Optimisers that run many attacks side by side: batched L-BFGS, first-order methods, and the slots they work in."""
