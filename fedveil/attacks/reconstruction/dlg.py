"""DLG, deep leakage from gradients: inputs and labels are optimised together (Zhu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.reconstruction.matching import GradientMatching


@dataclass(frozen=True)
class DLG(GradientMatching):
    """Starts from normal noise and optimises the labels too."""

    init: str = "random-normal"
    label: str = "joint"

    name: ClassVar[str] = "dlg"
    summary: ClassVar[str] = "gradient matching from normal noise, label optimised jointly (Zhu et al. 2019)"
