"""The account of a run folder: its transcript, or for a folder from before there were transcripts, that of its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedveil.accounting import transcript
from fedveil.accounting.transcript import Transcript
from fedveil.config import load
from fedveil.core.errors import RunError
from fedveil.federation import plan
from fedveil.runs import RunFolder

IN_MEMORY = "(arrays in memory)"


def transcript_of(path: Path, rounds: int | None = None) -> Transcript:
    """What the run in a folder executed so far, or in its first `rounds` rounds."""
    file, run = path / transcript.FILE, RunFolder.open(path)
    if file.exists():
        return transcript.read(file, rounds, at_least=_shown(run))
    return _older(run, rounds)


def _shown(run: RunFolder) -> int:
    """Rounds that any file shows. Metrics are written before the checkpoint that holds their round, so a checkpoint that
    cannot be read hides none."""
    shown = len(run.read_metrics())
    try:
        return max(shown, run.checkpoint_round())
    except RunError:
        return shown


def _older(run: RunFolder, rounds: int | None) -> Transcript:
    """The plan of a simulated run, as far as its files show rounds. Of other runs the config does not tell enough."""
    config = load(run.config)
    why = ""
    if (run.path / "deploy.json").exists():
        why = "it was deployed, and its nodes, lost answers and repeated rounds are in no transcript"
    elif run.read_info().get("own_model"):
        why = "it was trained with a model of its own, whose layers the config does not tell"
    elif config.data.file == IN_MEMORY:
        why = "it was trained on arrays in memory, whose sizes the config does not tell"
    if why:
        raise RunError(f"{run.path} has no {transcript.FILE}: {why}; run it again to get an account")
    done = _shown(run)
    dropped = sum(int(row.get("not_finite", 0)) for row in run.read_metrics())
    made = plan(config).transcript(done if rounds is None else min(rounds, done))
    if not run.secret.exists():  # before there were secret draws, all draws followed `train.seed`
        made = replace(made, setting=replace(made.setting, secret_draws=False))
    return transcript.with_dropped(made, dropped)
