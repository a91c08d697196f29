"""Samplers of noise: keyed for simulations (`noise`), cryptographic for deployments (`secure`)."""
