"""Measurements of cpl beyond a plain study of attacks: local steps on one example, and a comparison with other attacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedveil.config import for_attack, load
from fedveil.core.errors import ConfigError
from fedveil.recipes.cell import Job

if TYPE_CHECKING:
    from fedveil.attacks.observation import GradientObservation

Result = dict[str, object]


def attack_steps(job: Job) -> Result:
    """Attacks updates of M local steps on one example, with an attacker that looks for one (cpl, Tables 6(b) and 9).

    A plain study looks for as many examples as the steps drew; here the attacker knows that a client holds one. Option
    `divided`: see `one_example`.
    """
    from fedveil.attacks.base import ReconstructionAttack
    from fedveil.attacks.study import Round, run_on
    from fedveil.federation import prepare

    config = for_attack(load(None, list(job.settings)))
    attack = config.attack.make()
    assert isinstance(attack, ReconstructionAttack)
    federation = prepare(config, trainable=False)
    if int(federation.partition.max_length) > 1:
        raise ConfigError("data.per_client", config.data.per_client, "takes 1: the steps are all on one example")
    divided = getattr(attack, "reading", "") == "simulated" or bool(job.options.get("divided"))
    # The truth is [clients, steps, ...], the same example at every step.
    attacked = Round(federation, federation.simulator.start(), 0, lambda seen: one_example(seen, divided), examples=1)
    images = min(config.attack.images, federation.partition.clients)
    done = run_on(attacked, attack, config.attack.model_copy(update={"images": images}))
    document = {key: value for key, value in done.as_dict().items() if key != "round"}
    return {**document, "steps": done.groups[0].observation.local_steps}


def one_example(seen: GradientObservation, divided: bool) -> GradientObservation:
    """Updates of M steps as the gradient of one example: the update over the learning rate, which is the sum of the steps'
    gradients (cpl, Algorithm 1 line 6), or `divided` by M, which is their mean."""
    times = 1 if divided else seen.local_steps
    gradients = jax.tree.map(lambda a: np.asarray(a) * times, seen.gradients)
    return replace(seen, gradients=gradients, examples=1, order=None)


def compare_attacks(job: Job) -> Result:
    """One of CPL, Aono and Melis (option `attack`) on one network (option `model`), as cpl's Fig. 10 compares them."""
    from fedveil.attacks.games import compare

    config = load(None, list(job.settings))
    pair = (str(job.options["attack"]), str(job.options["model"]))
    row = compare.rows(config, config.attack.images, [pair])[0]
    kept = ("attack", "victims", "ssim", "mse", "label_success_rate", "seconds")
    return {**{key: row[key] for key in kept}, "ssim_interval": row["ssim_interval"]}
