"""The settings of one private SGD step, which every peer of `bench round` gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivateStep:
    """A step on a batch of fixed size: clip each example's gradient per layer, add Gaussian noise to the sum, descend."""

    batch: int
    clip: float  # C, the bound on the L2 norm of one layer's gradient
    noise: float  # σ, the noise multiplier: the standard deviation is σ·C
    lr: float
