"""CPL: gradient matching from a patterned start (Wei et al. 2020, "A framework for evaluating client privacy leakages")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.reconstruction.matching import GradientMatching


@dataclass(frozen=True)
class CPL(GradientMatching):
    """The defaults of `GradientMatching` are cpl's (Algorithm 1)."""

    name: ClassVar[str] = "cpl"
    summary: ClassVar[str] = "gradient matching from a patterned start, label inferred (cpl, Algorithm 1)"
