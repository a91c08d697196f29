"""Inverting gradients: matches the angle between gradients, with total variation and signed Adam (Geiping et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.reconstruction.matching import GradientMatching


@dataclass(frozen=True)
class Inverting(GradientMatching):
    """The settings of the paper's code."""

    init: str = "random-normal"
    distance: str = "cosine"
    optimizer: str = "adam"
    lr: float | None = 0.1
    iterations: int = 4800
    tv: float = 1e-4
    signed: bool = True
    decay: bool = True
    box: bool = True

    name: ClassVar[str] = "inverting"
    summary: ClassVar[str] = "cosine distance, total variation, signed Adam (Geiping et al. 2020)"
