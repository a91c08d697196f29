"""Reconstruction by gradient matching: one optimisation, composed of an init, a distance, labels, an optimiser, a stop."""
