"""Measurements of cpl that a plain study of attacks does not make: local steps on one example, other inferences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedveil.config import for_attack, load
from fedveil.core.errors import ConfigError
from fedveil.recipes.cell import Job

if TYPE_CHECKING:
    from fedveil.attacks.observe import Observation

Result = dict[str, object]


def attack_steps(job: Job) -> Result:
    """The attack on an update of M local steps on one example, by one who looks for one example (cpl, Tables 6(b) and 9).

    A study of attacks looks for as many examples as the steps drew; here the attacker knows that a client holds one. Option
    `divided`: what `one_example` says.
    """
    from fedveil.attacks import truth
    from fedveil.attacks.catalog import settings
    from fedveil.attacks.observe import from_tap
    from fedveil.attacks.run import attack
    from fedveil.attacks.score import score
    from fedveil.attacks.study import check_tap, pooled
    from fedveil.federation import prepare

    config = for_attack(load(None, list(job.settings)))
    asked = config.attack
    check_tap(asked)
    federation = prepare(config, trainable=False)
    if int(federation.partition.max_length) > 1:
        raise ConfigError("data.per_client", config.data.per_client, "takes 1: the steps are all on one example")
    clients = list(range(min(asked.images, federation.partition.clients)))
    x, y = truth.of_tap(federation, 0, clients, asked.at)  # [clients, steps, ...]: the same example at every step
    seen = from_tap(federation, federation.simulator.start(), 0, clients, asked.at)
    made = settings(asked.name, **asked.given())
    one = one_example(seen, divided=made.reading == "simulated" or bool(job.options.get("divided")))
    done = attack(one, made, seeds=range(asked.seeds), precision=config.speed.precision)
    found = pooled([score(done, x[:, :1], y[:, :1], asked.rule, federation.dataset.groups)])
    head = {"attack": made.name, "tap": asked.at, "steps": seen.local_steps}
    return {**head, **found, "compile_seconds": done.compile_seconds}


def one_example(seen: Observation, divided: bool) -> Observation:
    """Updates of M steps as the gradient of one example: the update over the learning rate, which is the sum of the steps'
    gradients (cpl, Algorithm 1 line 6), or `divided` by M their mean."""
    times = 1 if divided else seen.local_steps
    gradients = jax.tree.map(lambda a: np.asarray(a) * times, seen.gradients)
    return replace(seen, gradients=gradients, examples=1, order=None)


def compare_attacks(job: Job) -> Result:
    """One of CPL, Aono and Melis (option `attack`) on one network (option `model`), as cpl's Fig. 10 compares them."""
    from fedveil.attacks.inference import compare

    config = load(None, list(job.settings))
    pair = (str(job.options["attack"]), str(job.options["model"]))
    row = compare.rows(config, config.attack.images, [pair])[0]
    kept = ("attack", "victims", "ssim", "mse", "label_success_rate", "seconds")
    return {**{key: row[key] for key in kept}, "ssim_interval": row["ssim_interval"]}
