"""iDLG: DLG with the label read off the gradient (Zhao et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.reconstruction.matching import GradientMatching


@dataclass(frozen=True)
class IDLG(GradientMatching):
    """Starts from normal noise."""

    init: str = "random-normal"

    name: ClassVar[str] = "idlg"
    summary: ClassVar[str] = "DLG with the label inferred (Zhao et al. 2020)"
