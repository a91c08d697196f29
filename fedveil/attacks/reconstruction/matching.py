"""Gradient matching: the settings that cpl, DLG, iDLG and inverting share, and their common `run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedveil.attacks.base import AUXILIARY_DATA, LABELS, ONCE, Execution, Reconstruction, ReconstructionAttack
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.attacks.observation import GradientObservation

INITS: dict[str, str] = {
    "patterned-2x2": "uniform noise on a quarter, tiled 2×2 (cpl)",
    "patterned-4x4": "uniform noise on a sixteenth, tiled 4×4 (cpl)",
    "random-normal": "normal noise (DLG, iDLG, inverting)",
    "random-uniform": "uniform noise in [0, 1)",
    "dark": "all zeros",
    "light": "all ones",
    "red": "plain red, for colour images",
    "green": "plain green, for colour images",
    "blue": "plain blue, for colour images",
    "optimal": "another example of the same class, from the attacker's auxiliary data",
    "optimal-any": "any example from the attacker's auxiliary data",
    "file": "the picture or array in attack.file",
}
INIT_ALIASES = {"patterned": "patterned-2x2"}
DISTANCES: dict[str, str] = {
    "l2": "squared L2 distance of all gradients",
    "cosine": "one minus the cosine of all gradients taken as one vector",
    "cosine-layers": "one minus the cosine of each layer's gradient, summed: sees through a clip of single layers",
    "entropy": "Kullback-Leibler divergence of the gradients' softmax",
}
OPTIMIZERS: dict[str, str] = {
    "lbfgs": "L-BFGS without line search, 20 steps to an iteration",
    "adam": "Adam",
    "sgd": "plain gradient descent",
    "momentum": "gradient descent with momentum 0.9",
    "adagrad": "Adagrad",
}
LABEL_SOURCES: dict[str, str] = {
    "infer": "read off the last layer's gradient",
    "joint": "optimised together with the content",
    "given": "granted to the attacker",
}
READINGS: dict[str, str] = {
    "simple": "an update after L local steps is taken for L times the first gradient",
    "simulated": "the L local steps are made again inside the attack",
}

FORMS: dict[str, str] = {
    "plain": "the inputs themselves",
    "geometric": "w and b of inputs w·(start − b), from w = 1 and b = 0 (cpl, Eq. 2)",
}


@dataclass(frozen=True)
class GradientMatching(ReconstructionAttack):
    """Optimises dummy inputs until their gradient matches the observed one."""

    init: Annotated[str, Field(description="where the attack starts")] = "patterned-2x2"
    form: Annotated[str, Field(description="what is optimised")] = "plain"
    distance: Annotated[str, Field(description="the distance between dummy and observed gradient")] = "l2"
    optimizer: Annotated[str, Field(description="the optimiser of the dummy inputs")] = "lbfgs"
    lr: Annotated[float | None, Field(gt=0, description="step length (1 for lbfgs, else 0.1)")] = None
    iterations: Annotated[
        int, Field(ge=1, le=10_000_000, description="attack iterations T; with lbfgs one is up to 20 steps")
    ] = 300
    stop: Annotated[float | None, Field(gt=0, description="a squared gradient distance that ends the attack")] = None
    plateau: Annotated[
        int | None, Field(ge=1, description="iterations without 1 % progress of the objective that end the attack")
    ] = None
    label: Annotated[str, Field(description="where the labels come from")] = "infer"
    alpha: Annotated[
        float, Field(ge=0, description="weight of the label term ‖softmax f(x) − y‖² (cpl, Algorithm 1 line 12)")
    ] = 0.0
    tv: Annotated[float, Field(ge=0, description="weight of the total variation, for images")] = 0.0
    signed: Annotated[bool, Field(description="steps by the sign of the gradient")] = False
    decay: Annotated[bool, Field(description="a tenth of the step length after 3/8, 5/8, 7/8 of the iterations")] = (
        False
    )
    box: Annotated[bool, Field(description="keeps inputs in their known range at every step")] = False
    restarts: Annotated[
        int, Field(ge=0, le=1000, description="further starts; the one with the least objective is kept")
    ] = 0
    reading: Annotated[str, Field(description="what an update of several local steps is taken for")] = "simple"
    file: Annotated[str | None, Field(description="with init = file: a picture, or an .npy array")] = None

    bench: ClassVar[tuple[str, ...]] = (*ReconstructionAttack.bench, "limits")
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "init": {**INITS, **INIT_ALIASES},
        "form": FORMS,
        "distance": DISTANCES,
        "optimizer": OPTIMIZERS,
        "label": LABEL_SOURCES,
        "reading": READINGS,
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", INIT_ALIASES.get(self.init, self.init))
        if self.lr is None:
            object.__setattr__(self, "lr", 1.0 if self.optimizer == "lbfgs" else 0.1)

    @property
    def step_length(self) -> float:
        assert self.lr is not None, "__post_init__ sets it"
        return self.lr

    def check(self) -> None:
        if self.optimizer == "lbfgs":
            for key in ("signed", "decay", "box"):
                if getattr(self, key):
                    takes = "is for first-order optimisers: set attack.optimizer to 'adam'"
                    raise ConfigError(f"attack.{key}", True, takes)
        if self.box and self.form != "plain":
            raise ConfigError("attack.box", True, "keeps plain inputs in their range: set attack.form to 'plain'")
        if self.init == "file" and self.file is None:
            raise ConfigError("attack.file", None, "init 'file' takes the path of a picture, or of an .npy array")
        if self.label == "joint" and self.alpha > 0:
            takes = "needs a fixed label: set attack.label to 'infer', or alpha to 0"
            raise ConfigError("attack.alpha", self.alpha, takes)

    def capabilities(self) -> frozenset[str]:
        auxiliary = {AUXILIARY_DATA} if self.init.startswith("optimal") else set()
        return frozenset(auxiliary | ({LABELS} if self.label == "given" else set()))

    def shortened(self, iterations: int) -> GradientMatching | None:
        if self.decay or iterations >= self.iterations:  # with decay the step lengths follow the number of iterations
            return None
        return dataclasses.replace(self, iterations=iterations)

    def run(self, observation: GradientObservation, execution: Execution = ONCE) -> Reconstruction:
        from fedveil.attacks.reconstruction.engine import reconstruct

        return reconstruct(observation, self, execution)
