"""The inversion game: federations are trained, their models inverted, and the classes compared with the victim's data.

The attack computes every class, or those in `attack.classes`. Only the bench knows which of them the victim holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.base import Progress, silent
from fedveil.attacks.games.federations import Target, final_state, part
from fedveil.attacks.games.inversion_score import Truth, noise_pictures, score_classes, summary, truth_of
from fedveil.attacks.games.observe import check_clients, observe
from fedveil.attacks.games.outcome import Outcome, cut, head
from fedveil.attacks.inference.base import InversionAttack
from fedveil.attacks.inference.inversion import is_logistic, stretched
from fedveil.attacks.observation import InversionObservation, ModelObservation
from fedveil.core.errors import ConfigError
from fedveil.federation import Federation
from fedveil.simulation.learning import of_attacked


@dataclass(frozen=True)
class Case:
    """One federation: what each adversary saw of it, its initial model, and what the victim holds."""

    seed: int
    seen: tuple[ModelObservation, ...]  # one for each of the attacks
    start: ModelObservation
    truth: Truth
    accuracy: float  # of the global model, on the held-out part


def play(target: Target, attack: InversionAttack, progress: Progress = silent) -> Outcome:
    """Trains `attack.seeds` federations, inverts their models and scores what was recovered."""
    started = time.monotonic()
    cases = list(gather(target, [attack], progress))
    found, scores = judge(cases, attack, 0)
    first = cases[0]
    method = {"method": attack.method} if hasattr(attack, "method") else {}
    document = {
        **head(attack),
        "round": first.seen[0].rounds[-1],
        **method,
        "success_rate": None,
        **summary(scores),
        "controls": controls(cases, attack),
        **of_attacked([case.accuracy for case in cases], target.first.dataset.held_out.y),
        "federations": len(cases),
        "seconds": time.monotonic() - started,
    }
    asked = target.config.attack.round
    planned = target.first.rounds if asked is None else asked
    left = cut(rounds=(first.seen[0].rounds[-1], planned), federations=(len(cases), target.seeds))
    if len(first.seen[0].shape) != 3:
        return Outcome(document, cut=left)
    shown = wanted_classes(first, attack)
    rows = (first.truth.means(shown), np.stack([stretched(x) for x in found[0]]))
    return Outcome(document, rows, ("class mean of the victim", f"recovered, {attack.adversary}"), cut=left)


def check(federation: Federation, attack: InversionAttack) -> None:
    """Refuses a model, client, class or regulariser that does not fit, before anything is trained."""
    check_clients(federation, attack.position)
    if getattr(attack, "method", None) == "closed" and not is_logistic(federation.simulator.task.model):
        takes = "solves logistic regression alone: set model.name to 'logistic', or take 'ascent'"
        raise ConfigError("attack.method", "closed", takes)
    tv = getattr(attack, "tv", 0.0)
    if tv and len(federation.dataset.shape) != 3:
        raise ConfigError("attack.tv", tv, "is for images: leave it out for attributes")
    victim = attack.position.victim
    held = truth_of(federation, victim).classes
    for label in attack.classes or ():
        if label not in held:
            takes = f"client {victim} holds {', '.join(map(str, held))}: there is nothing to compare others with"
            raise ConfigError("attack.classes", label, takes)


def gather(target: Target, attacks: Sequence[InversionAttack], progress: Progress = silent) -> Iterator[Case]:
    """Trains the federations one after the other and observes each from the position of every attack.

    The time limit may cut the first one short; of the others, those that get as far are kept.
    """
    made = None
    for number in range(target.seeds):
        if number and target.limit.over:
            return
        federation = target.federation(number)
        target = replace(target, dataset=federation.dataset)  # loaded once
        for attack in attacks:
            check(federation, attack)
        asked = target.config.attack.round
        rounds = federation.rounds if asked is None else asked
        if rounds > federation.rounds:
            raise ConfigError("attack.round", asked, f"takes 0 to {federation.rounds}, the rounds that are trained")
        first = jax.device_get(federation.simulator.start().params)
        done, state = final_state(federation, rounds, part(progress, number, target.seeds), target.limit)
        if made is not None and done < made:
            return
        made = done
        seen = observe(federation, state, done, [attack.position for attack in attacks])
        accuracy = federation.simulator.evaluate(state.params)[0]
        start = replace(seen[0], models=(first,), rounds=(0,), received=())
        truth = truth_of(federation, attacks[0].position.victim)
        yield Case(federation.config.train.seed, seen, start, truth, accuracy)


def wanted_classes(case: Case, attack: InversionAttack) -> tuple[int, ...]:
    """The classes that are scored: those asked for, or all that the victim holds."""
    return tuple(attack.classes) if attack.classes else case.truth.classes


def judge(
    cases: Sequence[Case], attack: InversionAttack, index: int | None
) -> tuple[list[np.ndarray], list[list[dict[str, Any]]]]:
    """The recovered inputs of the scored classes and their scores, both for each federation.

    `index` is that of the observation to attack; None: the initial model of each federation.
    """
    observed = tuple(case.start if index is None else case.seen[index] for case in cases)
    classes = tuple(attack.classes or range(observed[0].classes))
    every = attack.run(InversionObservation(observed, classes))
    found, scores = [], []
    for case, seen, inputs in zip(cases, observed, every, strict=True):
        wanted = wanted_classes(case, attack)
        kept = inputs[[classes.index(label) for label in wanted]]
        found.append(kept)
        scores.append(score_classes(kept, answers(seen, kept), wanted, case.truth))
    return found, scores


def answers(seen: ModelObservation, inputs: np.ndarray) -> np.ndarray:
    """The class that the attacked model gives to each input."""
    dtype = jax.tree.leaves(seen.last)[0].dtype
    with jax.enable_x64(dtype == np.float64):
        return np.asarray(seen.model.apply(seen.last, jnp.asarray(inputs, dtype)).argmax(axis=1))


def controls(cases: Sequence[Case], attack: InversionAttack) -> dict[str, dict[str, Any]]:
    """The scores where nothing was learnt: the same attack on the untrained model, noise, a blank picture."""
    made = {"untrained": judge(cases, attack, None)[1], "noise": [], "blank": []}
    for case in cases:
        wanted = wanted_classes(case, attack)
        shape = (len(wanted), *case.start.shape)
        for name, pictures in (("noise", noise_pictures(case.seed, shape)), ("blank", np.zeros(shape))):
            made[name].append(score_classes(pictures, answers(case.start, pictures), wanted, case.truth))
    keys = ("ssim", "mse", "recognised_rate")
    return {name: {key: summary(scores)[key] for key in keys} for name, scores in made.items()}
