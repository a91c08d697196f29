"""What an attacker is handed: what it sees, and the capabilities granted to it. The truth is never here.

`GradientObservation` is for reconstructions. The others are for inference attacks, one for each question that these answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.core.errors import RunError
from fedveil.core.system import Lazy
from fedveil.models.layers import Params, Shape
from fedveil.models.net import Model

if TYPE_CHECKING:
    import jax

    from fedveil.attacks.inference.property import Property
    from fedveil.attacks.inference.replay import LocalRules
else:
    jax = Lazy("jax")

Tree = Any


@dataclass(frozen=True)
class AuxiliaryData:
    """Examples that the attacker holds, none of them attacked."""

    x: np.ndarray  # [held, ...shape], as the model sees them
    y: np.ndarray  # [held]


class Observation:
    """Base of all observations."""


# --- for reconstructions


@dataclass(frozen=True)
class GradientObservation(Observation):
    """Gradients, one for each attack, and what else the attacker knows.

    The attacks differ only in their gradient: `gradients` has a leading axis over the attacks, and so has `params` where
    every victim received its own model. `ids` names what is attacked, so that the random start of an attack depends on
    its victim and not on its index in the batch.
    """

    model: Model
    params: Params  # the model of the gradients: one for all, or with a leading axis over the attacks
    gradients: Params  # [attacks, ...], mean over the examples behind each
    ids: np.ndarray  # [attacks] the victim of each attack
    shape: Shape  # of one example
    classes: int
    examples: int = 1  # behind each gradient
    own_params: bool = False  # params have the leading axis
    span: tuple[float, float] | None = (0.0, 1.0)  # the range of input values; None: any value
    lr: float | None = None  # the victims' learning rate
    local_steps: int = 1  # the gradient is the mean over this many local steps
    order: tuple[tuple[int, ...], ...] | None = None  # which of the examples each local step used; None: all of them
    known_labels: np.ndarray | None = None  # [attacks, examples], where granted
    held_classes: int | None = None  # the most classes that a victim holds, where known
    auxiliary: AuxiliaryData | None = None  # where granted, for the inits `optimal` and `optimal-any`

    def __post_init__(self) -> None:
        leaves, held = jax.tree.leaves(self.gradients), jax.tree.leaves(self.params)
        if str(jax.tree.structure(self.gradients)) != str(jax.tree.structure(self.params)):
            raise RunError("the gradients and the model's parameters have different layers")
        for gradient, param in zip(leaves, held, strict=True):
            expected = param.shape if self.own_params else (len(self.ids), *param.shape)
            if gradient.shape != expected:
                raise RunError(f"a gradient has shape {gradient.shape} where the parameters ask for {expected}")
        if self.known_labels is not None and self.known_labels.shape != (len(self.ids), self.examples):
            expected = (len(self.ids), self.examples)
            raise RunError(f"known_labels has shape {self.known_labels.shape}; give {expected}: one for every example")

    def __len__(self) -> int:
        return len(self.ids)


def of_gradients(
    model: Model, params: Params, gradients: Tree, shape: Shape, classes: int, **more: Any
) -> GradientObservation:
    """An observation of your own gradients: one tree like `params`, or one with a leading axis over several attacks."""
    leaves, held = jax.tree.leaves(gradients), jax.tree.leaves(params)
    if leaves and held and np.ndim(leaves[0]) == np.ndim(held[0]) and not more.get("own_params", False):
        gradients = jax.tree.map(lambda g: np.asarray(g)[None], gradients)
    attacks = len(jax.tree.leaves(gradients)[0])
    more.setdefault("ids", np.arange(attacks))
    return GradientObservation(model, params, gradients, shape=tuple(shape), classes=classes, **more)


# --- for inference attacks


@dataclass(frozen=True)
class TrainingTerms:
    """The training as every participant knows it."""

    clients: int
    per_round: int
    local_steps: int
    batch: int
    lr: float
    aggregation: str


@dataclass(frozen=True)
class ModelObservation(Observation):
    """Models that were seen, oldest first, and what else the attacker knows."""

    model: Model
    models: tuple[Params, ...]
    rounds: tuple[int, ...]  # rounds trained before each
    shape: Shape
    classes: int
    span: tuple[float, float] | None
    terms: TrainingTerms
    auxiliary: AuxiliaryData | None = None  # the attacker's own examples, where it is a client
    received: tuple[Params, ...] = ()  # for adversaries that see local models: what each of them was trained from

    @property
    def last(self) -> Params:
        return self.models[-1]


@dataclass(frozen=True)
class InversionObservation(Observation):
    """Models of federations that share one architecture, and the classes whose common features are wanted."""

    federations: tuple[ModelObservation, ...]
    classes: tuple[int, ...]


@dataclass(frozen=True)
class MembershipObservation(Observation):
    """How sure a federation's model and the attacker's shadow models are of each record's label.

    All values are the log odds log(p/(1 − p)) of the label's probability p. Shadow training is a granted capability: the
    bench trains as many shadow federations as the attack asks for.
    """

    target: np.ndarray  # [records] the attacked model
    shadows: np.ndarray  # [shadows, records]
    inside: np.ndarray  # [shadows, records] bool: what the attacker trained each shadow on
    target_population: np.ndarray  # [others] records that no model was trained on
    shadows_population: np.ndarray  # [shadows, others]


@dataclass(frozen=True)
class ParticipationObservation(Observation):
    """The models of all rounds, the rules of the training, and the records of every candidate."""

    released: ModelObservation
    rules: LocalRules
    candidates: tuple[AuxiliaryData, ...]


@dataclass(frozen=True)
class ObservedUpdate:
    """An update that was seen."""

    round: int
    model: Params  # the model that it was made from, as far as the attacker has it
    update: np.ndarray  # [values]
    clients: int = 1  # the number of clients whose mean update it is, as far as the attacker knows


@dataclass(frozen=True)
class UpdateObservation(Observation):
    """Updates of several rounds, the rules of the training, and examples with and without the property."""

    updates: tuple[ObservedUpdate, ...]
    rules: LocalRules
    auxiliary: AuxiliaryData
    property: Property
    asked: np.ndarray  # indices of the updates of which the property is asked
    records: AuxiliaryData  # records that may be behind an update
    record_update: np.ndarray  # [records] index of the update that each record may be behind
