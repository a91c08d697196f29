"""Training: rounds in a loop, metrics, checkpoints, and going on after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedveil.config import load, to_toml
from fedveil.federation import Federation, prepare
from fedveil.models.layers import Params
from fedveil.privacy import ledger
from fedveil.rounds.server import ServerState
from fedveil.rounds.simulate import RoundReport
from fedveil.runs import RunFolder, environment, write_text

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a training came to."""

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

    def as_dict(self) -> dict[str, object]:
        """The fields of the JSON document."""
        return {
            "accuracy": self.accuracy,
            "split": self.split,
            "loss": self.loss,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "run": None if self.run is None else str(self.run),
            "clients_lost": sum(row["lost"] for row in self.history),
            "clients_not_finite": sum(row["not_finite"] for row in self.history),
            "ledger": [row.as_dict() for row in self.ledger],
        }


class Stopped(KeyboardInterrupt):
    """Training was interrupted; the run folder can be resumed."""

    def __init__(self, rounds: int, run: Path | None):
        self.rounds, self.run = rounds, run
        super().__init__(f"stopped after {rounds} rounds")


def train(
    federation: Federation, run: RunFolder | None = None, progress: Callable[[Row], None] | None = None
) -> Result:
    """Trains from the run's checkpoint, or from the start. `progress` sees each metrics row."""
    return _Training(federation, run, progress).go()


def resume(path: Path, progress: Callable[[Row], None] | None = None) -> Result:
    """Goes on with the run in a folder, from its own config."""
    run = RunFolder.open(path)
    return train(prepare(load(run.config)), run, progress)


class _Training:
    """The state of one training loop."""

    def __init__(self, federation: Federation, run: RunFolder | None, progress: Callable[[Row], None] | None):
        self.federation, self.run, self.progress = federation, run, progress
        self.simulator = federation.simulator
        self.history: list[Row] = []
        self.waiting: list[RoundReport] = []
        self.last_flush = self.last_save = time.monotonic()
        self.save_cost = 0.0

    def go(self) -> Result:
        rounds = self.federation.config.train.rounds
        every = self.federation.config.train.eval_every
        assert rounds is not None and every is not None
        state, done = self._begin()
        started, compiled = time.monotonic(), self.simulator.compile_seconds
        scores = None
        try:
            while done < rounds:
                state, report = self.simulator.round(state, done)
                self.waiting.append(report)
                done += 1
                scores = self.simulator.evaluate(state.params) if done % every == 0 or done == rounds else None
                self._flush(scores, done)
                self._checkpoint(state, done, final=done == rounds)
        except KeyboardInterrupt:
            self._flush(None, done, now=True)
            self._checkpoint(state, done, final=True)
            if self.run is not None:
                self.run.write_info(status="stopped", rounds_done=done)
            raise Stopped(done, self.run.path if self.run else None) from None
        accuracy, loss = scores or self.simulator.evaluate(state.params)
        compile_seconds = self.simulator.compile_seconds - compiled
        seconds = time.monotonic() - started - compile_seconds
        return self._finish(state, accuracy, loss, rounds, seconds, compile_seconds)

    def _begin(self) -> tuple[ServerState, int]:
        """The state to start from, and how many rounds it has behind it."""
        state, done = self.simulator.start(), 0
        if self.run is None:
            return state, done
        if not self.run.config.exists():
            write_text(self.run.config, to_toml(self.federation.config))
        restored = self.run.restore(state)
        if restored is not None:
            state, done = self.simulator.adopt(restored[0]), restored[1]
        self.run.rewind(done)
        self.history = self.run.read_metrics()
        self.run.write_info(status="running", rounds_done=done, note=self.federation.dataset.note, **environment())
        return state, done

    def _flush(self, scores: tuple[float, float] | None, done: int, now: bool = False) -> None:
        """Turns finished rounds into metrics rows; waits for the device, so not after every round of a fast run."""
        if not (now or scores or time.monotonic() - self.last_flush > 0.5):
            return
        rows = [report.row() for report in self.waiting]
        self.waiting = []
        if scores and rows:
            rows[-1] |= {"accuracy": scores[0], "loss": scores[1]}
        for row in rows:
            row["lr"] = self.simulator.schedule.at(int(row["round"]))
            self.history.append(row)
            if self.progress:
                self.progress(row)
        if self.run is not None:
            self.run.append(rows)
        self.last_flush = time.monotonic()

    def _checkpoint(self, state: ServerState, done: int, final: bool) -> None:
        """Saves as often as costs at most a twentieth of the time; metrics first, so that they are never behind."""
        if self.run is None or not (final or time.monotonic() - self.last_save >= 20 * self.save_cost):
            return
        self._flush(None, done, now=True)
        self.simulator.block(state)
        waited = time.monotonic()
        self.run.save(state, done)
        self.last_save = time.monotonic()
        self.save_cost = max(self.last_save - waited, 0.002)

    def _finish(
        self, state: ServerState, accuracy: float, loss: float, rounds: int, seconds: float, compile_seconds: float
    ) -> Result:
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
            ledger=ledger.rows(rounds),
        )
        if self.run is not None:
            self.run.write_info(status="done", rounds_done=rounds, result=result.as_dict())
        return result
