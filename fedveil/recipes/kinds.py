"""How each kind of cell is measured: a function from a job to plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedveil.config import Config, load
from fedveil.recipes.cell import Job
from fedveil.recipes.kinds_cpl import attack_steps, compare_attacks
from fedveil.recipes.kinds_dpfl import attack_layers, noise_time, noised_epoch
from fedveil.recipes.kinds_sweep import sweep_cell
from fedveil.recipes.kinds_two_dp_fl import curve

Result = dict[str, Any]


def _config(job: Job) -> Config:
    return load(None, list(job.settings))


def train(job: Job) -> Result:
    """A whole training: accuracy, seconds, and ε of every tap.

    `history`: also the accuracy of every evaluated round and the loss of every round. `test`: also the accuracy on the
    publisher's test part, where that is not what accuracy is measured on anyway.
    """
    from fedveil.federation import prepare
    from fedveil.training import train as go

    config = _config(job)
    federation = prepare(config)
    done = go(federation)
    scored = [(int(row["round"]) + 1, float(row["accuracy"])) for row in done.history if "accuracy" in row]
    result: Result = {
        "accuracy": done.accuracy,
        "split": done.split,
        "loss": done.loss,
        "rounds": done.rounds,
        "seconds": done.seconds,
        "compile_seconds": done.compile_seconds,
        "chance": done.chance,
        "held_out": len(federation.dataset.held_out),
        "ledger": epsilons(done.ledger),
    }
    if federation.dataset.test is not None and job.options.get("test"):
        result["test"] = federation.simulator.evaluate_on(done.params, federation.dataset.test)[0]
    if job.options.get("history"):
        result["history"] = scored
        result["train_loss"] = [[int(row["round"]) + 1, row["train_loss"]] for row in done.history]
    return result


SEARCH_SEED = 100  # of trainings that choose a setting; the figures shown have other seeds


def search(job: Job) -> Result:
    """The best of several settings by one training each, then trained with other seeds: a stated, bounded search.

    Option `tries` has lists of settings, `seeds` the number of trainings of the best one. Accuracy is on the validation
    part, which is where fed-cdp reports it too.
    """
    from fedveil.recipes.table import interval

    def accuracy(tried: list[str], seed: int) -> float:
        return float(train(Job("train", (*job.settings, *tried, *_seeded(seed)), {}))["accuracy"])

    tries = [list(one) for one in job.options["tries"]]
    found = [accuracy(one, SEARCH_SEED) for one in tries]
    chosen = tries[int(np.argmax(found))]
    measured = [accuracy(chosen, seed) for seed in range(int(job.options["seeds"]))]
    return {
        "accuracy": float(np.mean(measured)),
        "interval": interval(measured, rate=True) if len(measured) > 1 else None,
        "accuracies": measured,
        "chosen": chosen,
        "tried": [[one, value] for one, value in zip(tries, found, strict=True)],
    }


def _seeded(seed: int) -> tuple[str, str]:
    return f"train.seed={seed}", f"train.noise_seed={seed}"


def epsilons(rows: list[Any]) -> dict[str, float | None]:
    """ε by `tap/unit/accountant/rule/adjacency`."""
    return {f"{row.tap}/{row.unit}/{row.accountant}/{row.rule}/{row.adjacency}": row.epsilon for row in rows}


def attack(job: Job) -> Result:
    """Runs a reconstruction or an inference attack, as `fedveil attack` does."""
    from fedveil.attacks.orchestrate import attack

    config = _config(job)
    unlimited = config.attack.model_copy(update={"seconds": 0.0})  # a figure may not depend on the speed of the machine
    return attack(config.model_copy(update={"attack": unlimited})).as_dict()


def account(job: Job) -> Result:
    """The account of a config, without training; `rounds` and `accountants` as options."""
    from fedveil.run_account import account as account_of

    kinds = tuple(job.options.get("accountants", ("paper", "pld")))
    rows = account_of(_config(job), rounds=job.options.get("rounds"), accountant=kinds)
    return {"rounds": rows.parts[0][0].rounds, "ledger": epsilons(list(rows))}


def norms(job: Job) -> Result:
    """Mean L2 norm of example gradients at the first local step of some clients, round by round (fed-cdp, Fig. 3)."""
    from fedveil.federation import prepare

    federation = prepare(_config(job))
    simulator = federation.simulator
    clients = list(range(min(int(job.options.get("clients", 100)), federation.partition.clients)))
    state = simulator.start()
    found = []
    for number in range(federation.rounds + 1):
        if number in job.options["at"]:
            seen = simulator.observe_many(state, number, clients, frozenset({"example"}))["example"][0]
            squares = sum(np.square(a).reshape(*a.shape[:2], -1).sum(axis=2) for a in jax.tree.leaves(seen))
            found.append([number, float(np.sqrt(squares).mean())])
        if number < federation.rounds:
            state, _ = simulator.round(state, number)
    first, last = found[0][1], found[-1][1]
    highest, peak = max((norm, number) for number, norm in found)
    return {"norms": found, "first": first, "peak": highest, "peak_round": peak, "last": last, "ratio": last / first}


def dataset(job: Job) -> Result:
    """The sizes of a dataset."""
    from fedveil.federation import prepare

    federation = prepare(_config(job))
    data = federation.dataset
    return {
        "train": len(data.train),
        "held_out": len(data.held_out),
        "features": int(np.prod(data.shape)),
        "classes": data.classes,
        "per_client": int(np.median(federation.partition.length)),
    }


def round_time(job: Job) -> Result:
    """Milliseconds per client and local iteration: a training round after a first one that compiles."""
    import time

    from fedveil.federation import prepare

    federation = prepare(_config(job))
    simulator, setting = federation.simulator, federation.simulator.task.setting
    state = simulator.start()
    times = []
    for number in range(int(job.options.get("rounds", 6))):
        begun, compiled = time.monotonic(), simulator.compile_seconds
        state, report = simulator.round(state, number)
        simulator.block(state)
        if simulator.compile_seconds == compiled:
            times.append((time.monotonic() - begun) / max(1, report.row()["clients"]) / setting.local_steps * 1e3)
    return {"milliseconds": float(np.median(times)), "low": float(min(times)), "high": float(max(times))}


def calibrated(job: Job) -> Result:
    """A training whose noise the ledger sets: the least that keeps `epsilon`, `delta` at `tap` for `unit`."""
    from fedveil.run_account import calibrate

    found = calibrate(_config(job), **{key: job.options[key] for key in ("epsilon", "delta", "tap", "unit")}).found
    settings = (*job.settings, f"defense.{found.index}.{found.key}={found.value!r}")
    result = train(Job(job.kind, settings, {"test": True}))
    assumes = list(found.row.assumptions)
    return {
        **result,
        "noise": found.value,
        "epsilon": found.row.epsilon,
        "adjacency": found.row.adjacency,
        "assumes": assumes,
    }


KINDS: dict[str, Callable[[Job], Result]] = {
    "train": train,
    "search": search,
    "calibrated": calibrated,
    "attack": attack,
    "attack-steps": attack_steps,
    "compare-attacks": compare_attacks,
    "infer": attack,
    "ledger": account,
    "norms": norms,
    "dataset": dataset,
    "round-time": round_time,
    "curve": curve,
    "attack-layers": attack_layers,
    "noise-time": noise_time,
    "noised-epoch": noised_epoch,
    "sweep": sweep_cell,
}
