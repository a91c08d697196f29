"""The transcript of a run: a record of what each round executed. Every privacy account is computed from it alone.

`transcript.jsonl` of a run folder begins with a header: the public facts of the run (`Setting`), the mechanisms with the
taps that they stand before, and what the papers claim. A line follows for each round before its result is used: its
number, the attempt (a deployed round may be asked for again, with fresh noise), its learning rate, how many clients were
asked and lost, and z of every mechanism, read off the mechanism that ran. A last line for each round says how many
messages were left out for not being finite. Every line ends with a check: a digest of the line and of the check before it.
So a changed number or a missing line is noticed. Files of older versions have no checks.

A plan has a transcript too, of rounds that have not happened (`planned`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from fedveil.accounting import accounts
from fedveil.core.errors import RunError, show
from fedveil.core.events import Claim, Release
from fedveil.core.files import drop_cut_line
from fedveil.core.setting import Setting
from fedveil.core.system import to_json
from fedveil.defenses.base import Defense

FILE = "transcript.jsonl"
VERSION = 1
CHECK = re.compile(r', "check": "([0-9a-f]{16})"}')  # the end of each line
CHECK_LENGTH = 30
DELTA = 1e-5  # where no defence names one
LATER = {"arithmetic", "slip", "sum_slip"}  # fields of a release that older files lack
FORMER_NAMES = {"law": "distribution", "adds_up": "client_noise_sums", "covered": "certifiable"}  # in older files

Multipliers = tuple[float, ...]  # z of each mechanism
Outcome = tuple[int, int]  # messages dropped, answers lost


@dataclass(frozen=True)
class Executed:
    """One round as it was executed."""

    round: int
    lr: float
    asked: int
    lost: int
    multipliers: Multipliers
    attempt: int = 0


Rounds = dict[tuple[int, int], tuple[Executed, Outcome | None]]  # (round, attempt) → what ran, how it ended if known


@dataclass(frozen=True)
class Transcript:
    """The facts of a run and its rounds. Rounds with the same noise multipliers are counted together."""

    setting: Setting
    releases: tuple[Release, ...]
    claims: tuple[Claim, ...]
    delta: float
    groups: tuple[tuple[Multipliers, int], ...] = ()
    lost: int = 0  # answers that did not come, by accident rather than by a simulated coin
    dropped: int = 0  # messages left out for not being finite
    unknown: int = 0  # rounds whose outcome is not known: a message may have been dropped in them
    draws: str = ""  # what names the source of the draws: a run that is resumed must use the same

    @property
    def rounds(self) -> int:
        return sum(times for _, times in self.groups)

    def multipliers(self, release: int) -> list[tuple[float, int]]:
        """The noise multipliers z of one mechanism, each with its number of rounds."""
        counts: Counter[float] = Counter()
        for multipliers, times in self.groups:
            counts[multipliers[release]] += times
        return sorted(counts.items())

    def then(self, rounds: int) -> Transcript:
        """This transcript, followed by the next `rounds` rounds of the plan."""
        done = self.rounds
        return replace(self, groups=_joined(self.groups, _plan(self.releases, done, done + rounds)))

    @property
    def charged(self) -> Transcript:
        """What the account counts: with `train.stop` all planned rounds, since the end depends on the results.

        The rounds that were made are post-processing of the whole plan, so its ε holds; a smaller one would not.
        """
        left = self.setting.rounds - self.rounds
        return self.then(left) if self.setting.may_stop and left > 0 else self

    def plus(self, entry: Executed) -> Transcript:
        """This transcript, followed by one executed round."""
        return replace(self, groups=_joined(self.groups, [(entry.multipliers, 1)]))

    @property
    def digest(self) -> str:
        """The digest of the header. Transcripts of the same mechanisms in the same setting share it."""
        return hashlib.sha256(to_json(_header(self)).encode()).hexdigest()[:16]


def start(defenses: Sequence[Defense], setting: Setting, draws: str = "") -> Transcript:
    """The transcript of a run before its first round; `draws` names the source of its draws."""
    claims = tuple(claim for defense in defenses for claim in defense.claims(setting))
    return Transcript(setting, accounts.declared(defenses, setting), claims, delta_of(defenses), draws=draws)


def planned(defenses: Sequence[Defense], setting: Setting, rounds: int) -> Transcript:
    """The transcript of the first `rounds` rounds of a run that has not happened."""
    return start(defenses, setting).then(rounds)


def delta_of(defenses: Sequence[Defense]) -> float:
    """The δ of the first defence that has one."""
    return next((d.delta for d in defenses if d.delta is not None), DELTA)


def executed(
    defenses: Sequence[Defense], setting: Setting, number: int, lr: float, asked: int, lost: int, attempt: int = 0
) -> Executed:
    """The line of a round: z of every mechanism at the learning rate that the round really has."""
    multipliers = tuple(p.multiplier_at(setting, number, lr) for d in defenses for p in d.mechanisms(setting))
    return Executed(number, lr, asked, lost, multipliers, attempt)


def _plan(releases: Sequence[Release], first: int, end: int) -> tuple[tuple[Multipliers, int], ...]:
    """Rounds `first` to `end` by their multipliers."""
    scheduled = max((len(release.by_round) for release in releases), default=0)
    groups: Counter[Multipliers] = Counter()
    for number in range(first, min(end, scheduled)):
        groups[tuple(_at(release, number) for release in releases)] += 1
    after = end - max(first, min(end, scheduled))
    if after > 0:
        groups[tuple(_at(release, scheduled) for release in releases)] += after
    return tuple(groups.items())


def _at(release: Release, number: int) -> float:
    """z in a round; beyond the schedule the smallest."""
    return release.by_round[number] if number < len(release.by_round) else release.multiplier


def _joined(*parts: Iterable[tuple[Multipliers, int]]) -> tuple[tuple[Multipliers, int], ...]:
    counts: Counter[Multipliers] = Counter()
    for part in parts:
        for multipliers, times in part:
            counts[multipliers] += times
    return tuple(counts.items())


# --- the file


def _header(transcript: Transcript) -> dict[str, Any]:
    return {
        "transcript": VERSION,
        "setting": asdict(transcript.setting),
        "releases": [asdict(release) for release in transcript.releases],
        "claims": [asdict(claim) for claim in transcript.claims],
        "delta": transcript.delta,
        "draws": transcript.draws,
    }


class Recorder:
    """The transcript of a running training: in memory, and in a file where the run has a folder."""

    def __init__(self, header: Transcript, path: Path | None = None) -> None:
        self.header, self.path = header, path
        self.rounds: Rounds = {}
        self.file: IO[str] | None = None
        self.check: str | None = ""  # of the last line; None in a file without checks

    def begin(self, *, at_least: int = 0) -> None:
        """Opens the file, with its header if it is new; what it holds already is kept.

        `at_least`: rounds that the run has behind it. A file that lacks one of them is refused.
        """
        if self.path is None:
            return
        known = os.path.lexists(self.path) and (self.path.is_symlink() or self.path.stat().st_size > 0)
        if known:
            header, self.rounds, self.check = _parse(self.path, at_least)
            if header.digest != self.header.digest:
                takes = "it was begun with other mechanisms, sizes or draws: start a new run for this config"
                raise RunError(f"{self.path} does not fit the config of this run: {takes}")
            drop_cut_line(self.path)
        elif at_least:
            raise RunError(f"{self.path} is missing or empty: without it the account of this run is not known")
        self.file = self.path.open("a", encoding="utf-8")
        if not known:
            self._write(_header(self.header))
            self.sync()

    def append(self, entry: Executed) -> None:
        """Records a round. Call it before the result of the round is used."""
        self.rounds[entry.round, entry.attempt] = (entry, None)
        self._write(asdict(entry))

    def outcome(self, number: int, attempt: int = 0, *, dropped: int, lost: int = 0) -> None:
        """Records how a round ended: `dropped` messages that were not finite, and `lost` answers."""
        self.rounds[number, attempt] = (self.rounds[number, attempt][0], (dropped, lost))
        self._write({"outcome": number, "attempt": attempt, "dropped": dropped, "lost": lost})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.file is not None:
            text = to_json(line)
            if self.check is not None:
                self.check = _check(self.check, text)
                text = f'{text[:-1]}, "check": "{self.check}"}}'
            self.file.write(text + "\n")
            self.file.flush()

    def sync(self) -> None:
        """Waits until what was written survives a power cut: before anything that depends on it is stored."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):  # a line that did not fit on the disk was told of already
                self.file.close()
            self.file = None

    def transcript(self) -> Transcript:
        """All rounds so far."""
        return _of_rounds(self.header, self.rounds)


def read(path: Path, most: int | None = None, *, at_least: int = 0) -> Transcript:
    """The transcript in a file, or the first `most` rounds of it.

    `at_least`: rounds that other files of the run show. Where lines of some are missing the file is refused.
    """
    header, rounds, _ = _parse(path, at_least)
    return _of_rounds(header, dict(list(rounds.items())[:most]))


def _of_rounds(header: Transcript, rounds: Rounds) -> Transcript:
    groups = Counter(entry.multipliers for entry, _ in rounds.values())
    ended = [outcome for _, outcome in rounds.values() if outcome is not None]
    return replace(
        header,
        groups=tuple(groups.items()),
        dropped=sum(dropped for dropped, _ in ended),
        lost=sum(lost for _, lost in ended),
        unknown=len(rounds) - len(ended),
    )


def _check(before: str, text: str) -> str:
    """The check of a line; `before`: that of the line above."""
    return hashlib.sha256((before + text).encode()).hexdigest()[:16]


def _parse(path: Path, at_least: int) -> tuple[Transcript, Rounds, str | None]:
    """Header, rounds, and the check of the last line: None in a file without checks.

    A round that is repeated with the same draws after a stop has one line of each attempt.
    """
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        *lines, _ = path.read_text(encoding="utf-8").split("\n")  # a cut line: what it stood for was never used
        if not lines:
            raise ValueError("it has no whole line")
        text, check = _checked(lines[0], "" if CHECK.fullmatch(lines[0][-CHECK_LENGTH:]) else None)
        header, rounds = _read_header(json.loads(text)), Rounds()
        for number, line in enumerate(lines[1:], 2):
            text, check = _checked(line, check, number)
            _add(rounds, json.loads(text), header)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): without it the account of this run is not known") from None
    numbers = {number for number, _ in rounds}
    shown = max(at_least, 1 + max(numbers, default=-1))
    if len(numbers) < shown:
        missing = next(number for number in range(shown) if number not in numbers)
        raise RunError(f"{path} lacks round {missing}, which the run has behind it: its account is not known")
    return header, rounds, check


def _checked(line: str, before: str | None, number: int = 1) -> tuple[str, str | None]:
    """A line without its check, and that check; `before`: that of the line above."""
    if before is None:
        return line, None
    found, text = CHECK.fullmatch(line[-CHECK_LENGTH:]), line[:-CHECK_LENGTH] + "}"
    if found is None or found[1] != _check(before, text):
        raise ValueError(f"line {number} was changed, or one before it is missing")
    return text, found[1]


def _add(rounds: Rounds, line: dict[str, Any], header: Transcript) -> None:
    if "outcome" in line:
        key = _count(line["outcome"]), _count(line["attempt"])
        rounds[key] = (rounds[key][0], (_count(line["dropped"]), _count(line["lost"])))
        return
    entry = Executed(**{**line, "multipliers": tuple(float(z) for z in line["multipliers"])})
    for number in (entry.round, entry.attempt, entry.asked, entry.lost):
        _count(number)
    if len(entry.multipliers) != len(header.releases):
        raise ValueError(f"round {entry.round} has {len(entry.multipliers)} multipliers, not {len(header.releases)}")
    if not all(math.isfinite(z) and z >= 0 for z in (entry.lr, *entry.multipliers)):
        raise ValueError(f"round {entry.round} has a number that no round can have")
    rounds[entry.round, entry.attempt] = (entry, None)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{show(value)} where a whole number belongs")
    return value


def _read_header(document: dict[str, Any]) -> Transcript:
    if document["transcript"] != VERSION:
        raise ValueError(f"version {show(document['transcript'])} is not known here")
    sizes = tuple((_count(size), _count(steps)) for size, steps in document["setting"]["sizes"])
    setting = _made(Setting, {**document["setting"], "sizes": sizes}, former={})
    releases = tuple(_made(Release, release) for release in document["releases"])
    claims = tuple(_made(Claim, claim) for claim in document["claims"])
    delta = float(document["delta"])
    if not 0 < delta < 1:
        raise ValueError(f"δ = {delta:g}")
    return Transcript(setting, releases, claims, delta, draws=str(document["draws"]))


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}


def _made(kind: Any, document: dict[str, Any], former: Mapping[str, str] = FORMER_NAMES) -> Any:
    """Builds a frozen dataclass from a JSON object and checks each value's type. Former names of fields are accepted."""
    named = {former.get(key, key): tuple(v) if isinstance(v, list) else v for key, v in document.items()}
    known = {field.name: str(field.type) for field in fields(kind)}
    if named.keys() - known.keys() or (kind is not Setting and known.keys() - named.keys() - LATER):
        raise ValueError(f"not a {kind.__name__.lower()} of this version")
    for key, value in named.items():
        name = known[key]
        wanted = (tuple,) if name.startswith("tuple") else sum((_TYPES.get(n, (str,)) for n in name.split(" | ")), ())
        numbers = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, int | float)]
        if type(value) not in wanted or not all(math.isfinite(v) and abs(v) < 2**53 for v in numbers):
            raise ValueError(f"{key} = {show(value)}")
    return kind(**named)
