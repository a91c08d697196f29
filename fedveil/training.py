"""Training: the loop over rounds, metrics, checkpoints, and resuming after a stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fedveil.accounting import ledger, transcript
from fedveil.config import SECTIONS, Config, Defenses, Settings, from_dict, of_run, resolve, to_toml
from fedveil.core.errors import ConfigError, Interrupted, RunError, show
from fedveil.core.files import write_atomic, write_text
from fedveil.federation import Arrays, Federation, federation
from fedveil.models.catalog import digest_of_own, is_own
from fedveil.models.layers import Params
from fedveil.models.net import Model
from fedveil.runs import RunFolder, environment, parameters_as_bytes
from fedveil.simulation.learning import Outcome, chance_of, diagnosis, learned
from fedveil.simulation.server import ServerState
from fedveil.simulation.simulator import RoundReport, parameter_count

Row = dict[str, Any]
Progress = Callable[[Row], None]  # sees each row of the metrics


@dataclass(frozen=True)
class Result:
    """The result of a training."""

    accuracy: float
    split: str  # validation or test
    loss: float
    rounds: int
    seconds: float  # wall time of training and evaluation, compilation apart
    compile_seconds: float
    run: Path | None
    params: Params
    history: list[Row]
    ledger: list[ledger.Row] = field(default_factory=list)
    stopped: str = ""  # why it ended early; empty otherwise
    chance: float = 0.0  # the accuracy of naming the most common class of the held-out part
    learned: bool = True  # whether the accuracy is clearly above chance
    diagnosis: str = ""  # why it did not learn, or why its loss diverged, and what to change; empty otherwise

    def as_dict(self) -> dict[str, object]:
        """The fields of the JSON document."""
        return {
            "accuracy": self.accuracy,
            "split": self.split,
            "chance": self.chance,
            "learned": self.learned,
            "diagnosis": self.diagnosis or None,
            "loss": self.loss,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "run": None if self.run is None else str(self.run),
            "stopped": self.stopped or None,
            "clients_lost": sum(row["lost"] for row in self.history),
            "clients_not_finite": sum(row["not_finite"] for row in self.history),
            "ledger": [row.as_dict() for row in self.ledger],
        }


class SoftStop:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after the current round; a second one stops at once.

    Outside the main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SoftStop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


def train(
    settings: Settings | Federation = None,
    out: str | Path | RunFolder | None = None,
    progress: Progress | None = None,
    *,
    resume: bool = False,
    defense: Defenses | None = None,
    data: Arrays | None = None,
    model: Model | None = None,
) -> Result:
    """Trains a federation and returns the result.

    `settings`, `defense`, `data`, `model`: as in `fedveil.federation`; or a federation that is ready. `out`: the folder to
    write the run to. `resume`: continue the run in that folder from its checkpoint; its own settings are the default.
    `progress`: called with each row of the metrics.
    """
    if resume and out is None:
        raise ConfigError("resume", resume, "needs out, the folder of the run to go on with")
    if out == "":
        raise ConfigError("out", out, "takes the folder of a run: leave it out to write none")
    run = out if isinstance(out, RunFolder) else None
    if resume and run is None:
        run = RunFolder.open(Path(str(out)))
    if isinstance(settings, Federation):
        ready = settings
    elif resume and run is not None:
        ready = reopen(run, settings, defense=defense, data=data, model=model)
    else:
        ready = federation(settings, defense=defense, data=data, model=model)
    if run is None and out is not None:
        run = RunFolder.create(Path(str(out)))
    return _Training(ready, run, progress).go()


def resume(path: Path, progress: Progress | None = None) -> Result:
    """Resumes the run in a folder, from its own config and draws."""
    return train(out=path, progress=progress, resume=True)


def reopen(
    run: RunFolder,
    settings: Settings = None,
    *,
    defense: Defenses | None = None,
    data: Arrays | None = None,
    model: Model | None = None,
) -> Federation:
    """The federation of a run that is to be resumed, with its own draws. Settings that differ from its own are refused."""
    own = _own_config(run, defense)
    model = run.own_network("--resume") if model is None else model
    draws = run.draws(own.train.noise_seed)
    if settings is None:
        return federation(own, data=data, model=model, draws=draws)
    ready = federation(settings, defense=defense, data=data, model=model, draws=draws)
    _check_same(ready.config, resolve(own))
    return ready


def _own_config(run: RunFolder, defense: Defenses | None) -> Config:
    """The config of a run. A caller's own defence objects must be those it was begun with."""
    document = of_run(run.config)
    own = from_dict(document if defense is None else {**document, "defense": defense})
    run.check_config()
    if defense is not None and document.get("defense") != own.model_dump()["defense"]:
        raise _differs("defense", own.model_dump()["defense"], document.get("defense"))
    return own


def _check_same(given: Config, own: Config) -> None:
    """A run continues as it began: with other settings half way, its config.toml would be untrue."""
    if given.model_copy(update={"preset": own.preset}) == own:  # all keys have values: the preset does not matter
        return
    told, was = given.model_dump(), own.model_dump()
    for section in SECTIONS:
        for key, value in told[section].items():
            if value != was[section][key]:
                raise _differs(f"{section}.{key}", value, was[section][key])
    raise _differs("defense", told["defense"], was["defense"])


def _differs(key: str, given: object, own: object) -> ConfigError:
    return ConfigError(key, given, f"the run to go on with has {show(own)}: leave the settings out to keep its own")


class _Training:
    """The state of one training loop."""

    def __init__(self, federation: Federation, run: RunFolder | None, progress: Progress | None):
        self.federation, self.run, self.progress = federation, run, progress
        self.simulator = federation.simulator
        self.history: list[Row] = []
        self.waiting: list[RoundReport] = []
        self.last_flush = self.last_save = time.monotonic()
        self.save_cost = 0.0
        self.started, self.compiled, self.earlier = time.monotonic(), 0.0, 0.0
        task = self.simulator.task
        file = run.path / transcript.FILE if run is not None else None
        header = transcript.start(task.defenses, task.setting, self.simulator.draws.fingerprint)
        self.recorder = transcript.Recorder(header, file)

    def go(self) -> Result:
        with self.run.locked() if self.run is not None else nullcontext():
            try:
                return self._rounds()
            finally:
                self.recorder.close()

    def _rounds(self) -> Result:
        every = self.federation.config.train.eval_every
        assert every is not None
        rounds = self.federation.rounds
        state, done = self._begin()
        self.started, self.compiled = time.monotonic(), self.simulator.compile_seconds
        scores = None
        with SoftStop() as stop:
            while done < rounds and not self._converged():
                state, report = self.simulator.round(state, done)
                self._record(report)
                self.waiting.append(report)
                done += 1
                scores = self.simulator.evaluate(state.params) if done % every == 0 or done == rounds else None
                self._flush(scores)
                self._checkpoint(state, done, final=done == rounds or stop.wanted or self._converged())
                if stop.wanted and done < rounds:
                    raise self._stopped(done, rounds)
        accuracy, loss = scores or self.simulator.evaluate(state.params)
        return self._finish(state, accuracy, loss, done)

    def _converged(self) -> bool:
        """Whether the last `train.stop` evaluations brought no smaller loss (cpl, Section 2.1)."""
        patience = self.federation.config.train.stop
        losses = [float(row["loss"]) for row in self.history if "loss" in row]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def _record(self, report: RoundReport) -> None:
        """Records what a round executed, before its result is used."""
        task, lr = self.simulator.task, self.simulator.task.setting.lr_at(report.round)
        entry = transcript.executed(task.defenses, task.setting, report.round, lr, report.chosen, report.lost)
        if self.run is None:
            self.recorder.append(entry)
            return
        with self.run.writing():
            self.recorder.append(entry)

    def _stopped(self, done: int, rounds: int) -> Interrupted:
        if self.run is None:
            return Interrupted(f"stopped after {done} of {rounds} rounds")
        with self.run.writing():
            self.run.write_info(status="stopped", rounds_done=done)
        return Interrupted(f"stopped after {done} of {rounds} rounds; {self.run.how_to_go_on}")

    def _seconds(self) -> tuple[float, float]:
        """Seconds of training so far, including those before a resume, and seconds of compilation."""
        compiling = self.simulator.compile_seconds - self.compiled
        return self.earlier + time.monotonic() - self.started - compiling, compiling

    def _begin(self) -> tuple[ServerState, int]:
        """The state to start from, and the number of rounds already trained."""
        state = self.simulator.start()
        if self.run is None:
            return state, 0
        with self.run.writing():
            return self._begin_run(self.run, state)

    def _begin_run(self, run: RunFolder, state: ServerState) -> tuple[ServerState, int]:
        """Prepares the folder of a running training: secret, config, and metrics cut back to the checkpoint."""
        if not os.path.lexists(run.config):
            run.keep(self.simulator.draws)  # first: a run that has a config can be resumed
            write_text(run.config, to_toml(self.federation.config))
            run.write_info(config_sha256=run.config_digest())
            name = self.federation.config.model.name
            if self.federation.own_model:
                run.keep_network(self.simulator.task.model)
            elif name is not None and is_own(name):
                run.write_info(own={"name": name, "sha256": digest_of_own(name)})
        elif run.draws(self.federation.config.train.noise_seed) != self.simulator.draws:
            raise RunError(f"{run.path} was begun with other draws: prepare the federation with those of the run")
        done, restored = 0, run.restore(state)
        if restored is not None:
            state, done, self.earlier = self.simulator.adopt(restored.state), restored.round, restored.seconds
        if done > self.federation.rounds:
            raise RunError(f"{run.checkpoint} is of round {done}, and the run has {self.federation.rounds}")
        run.clear_leftovers()
        self.recorder.begin(at_least=done)
        run.rewind(done)
        self.history = run.read_metrics()
        held_out = self.federation.dataset.held_out
        about = {"note": self.federation.dataset.note, "own_model": self.federation.own_model}
        about |= {"chance": chance_of(held_out.y), "held_out": len(held_out)}
        run.write_info(status="running", rounds_done=done, **about, **environment())
        return state, done

    def _flush(self, scores: tuple[float, float] | None, now: bool = False) -> None:
        """Turns finished rounds into metrics rows; waits for the device, so not after every round of a fast run."""
        if not (now or scores or time.monotonic() - self.last_flush > 0.5):
            return
        rows = [report.row() for report in self.waiting]
        if scores and rows:
            rows[-1] |= {"accuracy": scores[0], "loss": scores[1]}
        for row in rows:
            row["lr"] = self.simulator.task.setting.lr_at(int(row["round"]))
            self.history.append(row)
            if self.progress:
                self.progress(row)
        with self.run.writing() if self.run is not None else nullcontext():
            for row in rows:
                self.recorder.outcome(int(row["round"]), dropped=int(row["not_finite"]))
            if self.run is not None:
                self.recorder.sync()
                self.run.append(rows)
        self.waiting = []
        self.last_flush = time.monotonic()

    def _checkpoint(self, state: ServerState, done: int, final: bool) -> None:
        """Checkpoints so often that saving takes at most 5 % of the time. Metrics are written before the checkpoint."""
        if self.run is None or not (final or time.monotonic() - self.last_save >= 20 * self.save_cost):
            return
        self._flush(None, now=True)
        self.simulator.block(state)
        waited = time.monotonic()
        with self.run.writing():
            self.run.save(state, done, self._seconds()[0])
        self.last_save = time.monotonic()
        self.save_cost = max(self.last_save - waited, 0.002)

    def _finish(self, state: ServerState, accuracy: float, loss: float, rounds: int) -> Result:
        seconds, compile_seconds = self._seconds()
        task, outcome = self.simulator.task, self._outcome(accuracy, loss)
        ended = f"no smaller loss in {self.federation.config.train.stop} evaluations" if self._converged() else ""
        result = Result(
            accuracy=accuracy,
            split=self.federation.dataset.held_out_name,
            loss=loss,
            rounds=rounds,
            seconds=seconds,
            compile_seconds=compile_seconds,
            run=self.run.path if self.run else None,
            params=state.params,
            history=self.history,
            ledger=ledger.rows(self.recorder.transcript(), accountants=("paper", "pld")),
            stopped=ended or self.federation.stops,
            chance=outcome.chance,
            learned=outcome.learned,
            diagnosis=diagnosis(outcome, task.defenses, task.setting, parameter_count(task)),
        )
        if self.run is not None:
            with self.run.writing():
                content = parameters_as_bytes(state.params)
                write_atomic(self.run.model, lambda file: file.write(content))
                self.run.write_info(status="done", rounds_done=rounds, result=result.as_dict())
        return result

    def _outcome(self, accuracy: float, loss: float) -> Outcome:
        """What was measured, beside the accuracy of a constant guess."""
        dataset = self.federation.dataset
        chance = chance_of(dataset.held_out.y)
        above = learned(accuracy, chance, len(dataset.held_out))
        dropped = sum(int(row["not_finite"]) for row in self.history)
        return Outcome(accuracy, loss, chance, above, dataset.classes, dropped)
