"""The inversion figures of 2dp-fl (section VI): rows of data for Figs 3, 4 and 6(a).

What the paper leaves open is chosen here and is part of every row (`setting`): the sizes of clients, the local steps, the
learning rate, the clip. Client 0 attacks, client 1 is the victim with classes 5 to 9, the others follow the paper's
disjoint label groups. Every seed gives another federation: other examples, other weights, other draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fedveil.accounting import ledger, transcript
from fedveil.accounting.ledger import as_planned
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.inversion import Case, controls, gather, judge
from fedveil.attacks.games.inversion_score import Scores, per_federation, summary
from fedveil.attacks.inference.inversion import Inversion, stretched
from fedveil.attacks.inference.roc import mean_interval
from fedveil.config import Config, from_dict
from fedveil.core.keys import Draws
from fedveil.federation import plan
from fedveil.runs import environment

VICTIM = (5, 6, 7, 8, 9)
ATTACKER = (0, 1, 2, 3, 4)
ADVERSARIES = {"passive-local": "broadcast", "passive-global": "broadcast", "active": "server"}  # and the tap of each
MODES = ("distinct", "same", "none")
WAYS: dict[str, dict[str, Any]] = {  # to recover a class
    "ascent": {},
    "ascent-tv": {"tv": 30.0},  # the best of 3, 10, 30, 100 on the first seed without a defence
    "closed": {"method": "closed"},  # logistic regression alone
}

Say = Callable[[str], None]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Ground:
    """The training behind the figures. U, T and δ are the paper's; the rest is our choice where it names none."""

    dataset: str = "mnist"
    model: str = "logistic"
    clients: int = 50  # K
    per_client: int = 500
    per_round: int = 10  # U
    rounds: int = 50  # T
    local_steps: int = 5  # m
    batch: int = 50  # B
    lr: float = 0.5  # η
    clip: float = 1.0  # G of 2DP-FL
    delta: float = 1e-3

    def config(self, seeds: int, attacker: Sequence[int] = ATTACKER, defense: dict[str, Any] | None = None) -> Config:
        """A federation of it, without a defence or with one."""
        return from_dict(
            {
                "data": {
                    "name": self.dataset,
                    "clients": self.clients,
                    "partition": "groups-disjoint",
                    "per_client": self.per_client,
                    "label_sets": [list(attacker), list(VICTIM)],
                },
                "model": {"name": self.model},
                "train": {
                    "rounds": self.rounds,
                    "per_round": self.per_round,
                    "sampling": "fixed",
                    "local_steps": self.local_steps,
                    "batch": self.batch,
                    "lr": self.lr,
                    "aggregation": "fedavg",
                    "weights": "size",
                    "noise_seed": 0,
                },
                "attack": {"name": "inversion", "seeds": seeds},
                "defense": [defense or {"name": "none"}],
            }
        )

    def defense(self, sigma: float, mode: str) -> dict[str, Any]:
        """2DP-FL with the same σ at clients and server."""
        noise = {"noise": sigma, "server_noise": sigma, "server_noise_mode": mode}
        return {"name": "2dp-fl", "clip": self.clip, "delta": self.delta, **noise}


GROUND = Ground()


def _attacks(adversaries: Sequence[str], way: str) -> list[Inversion]:
    return [Inversion(adversary=one, tap=ADVERSARIES[one], **WAYS[way]) for one in adversaries]


def _cases(config: Config, attacks: Sequence[Inversion]) -> list[Case]:
    return list(gather(Target(config, Draws.of(config.train.noise_seed)), attacks))


def _head(figure: str, ground: Ground, seeds: int, way: str) -> dict[str, Any]:
    """How a row was made: the part that every row has."""
    known: dict[str, Any] = environment()
    versions = {name: known["versions"][name] for name in ("fedveil", "jax", "numpy")}
    made = {"seeds": list(range(seeds)), "device": known["device"], "versions": versions}
    return {"figure": figure, "way": way, "setting": asdict(ground), **made}


def _figures(cases: Sequence[Case], scores: Sequence[Scores]) -> dict[str, Any]:
    """The measured part of a row."""
    means = summary(scores)
    each = [round(float(v), 4) for v in per_federation(scores, "ssim")]
    means["classes"] = {str(c["class"]): round(c["ssim"], 4) for c in means["classes"]}
    return {**means, "ssim_each": each, "accuracy": float(np.mean([case.accuracy for case in cases]))}


# --- Fig 3 ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """Fig 3: one row of pictures for each class and way, one column for each caption."""

    rows: Rows
    captions: tuple[str, ...]
    pictures: dict[str, np.ndarray] = field(repr=False)  # way: [classes, columns, height, width, channels]
    classes: tuple[int, ...] = (6, 8)


def figure3(
    ground: Ground = GROUND,
    *,
    seeds: int = 5,
    sigma: float = 1.0,
    classes: tuple[int, ...] = (6, 8),
    say: Say = lambda _: None,
) -> Pictures:
    """What the three adversaries recover, without a defence and under 2DP-FL (σ at clients and server, distinct).

    Rows score all classes of the victim; pictures show some of them, from the first seed's federation. The original is the
    victim's first picture of the class.
    """
    ways = tuple(way for way in WAYS if way != "closed" or ground.model == "logistic")
    defenses: dict[str, dict[str, Any] | None] = {"none": None, "2dp-fl": ground.defense(sigma, "distinct")}
    rows: Rows = []
    shown: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    captions = ["original", "class mean"]
    for name, defense in defenses.items():
        say(f"figure 3: {ground.model}, {name}")
        cases = _cases(ground.config(seeds, defense=defense), _attacks(tuple(ADVERSARIES), ways[0]))
        captions += [f"{name}: {adversary}" for adversary in ADVERSARIES]
        for way in ways:
            if not shown[way]:
                truth = cases[0].truth
                shown[way] += [np.stack([truth.of(c)[0] for c in classes]), truth.means(classes)]
            for index, attack in enumerate(_attacks(tuple(ADVERSARIES), way)):
                found, scores = judge(cases, attack, index)
                picked = [cases[0].truth.classes.index(c) for c in classes]
                shown[way].append(np.stack([stretched(x) for x in found[0][picked]]))
                head = {**_head("3", ground, seeds, way), "defense": defense or {"name": "none"}}
                rows.append({**head, "seat": attack.adversary, "tap": attack.position.tap, **_figures(cases, scores)})
            if defense is None:
                head = _head("3", ground, seeds, way)
                rows.append({**head, "controls": controls(cases, _attacks(("active",), way)[0])})
    return Pictures(rows, tuple(captions), {m: np.stack(s, axis=1) for m, s in shown.items()}, classes)


# --- Fig 4 ---------------------------------------------------------------------------------------------------------


def figure4(
    ground: Ground = GROUND,
    *,
    clients: Sequence[int] = (10, 20, 50),
    seeds: int = 10,
    ways: Sequence[str] = tuple(WAYS),
    say: Say = lambda _: None,
) -> Rows:
    """SSIM against the number of classes in which attacker and victim differ, for several K; no defence.

    The victim keeps classes 5 to 9, so that the same five pictures are scored all along; the attacker holds 5 − d to 9 − d.
    `ssim` is over all classes of the victim, `ssim_unseen` over the d of them that the attacker lacks. After the points
    come the trends (`trend`, `more_clients`) and the controls.
    """
    adversaries = ("passive-local", "passive-global")
    rows: Rows = []
    for count in clients:
        here = replace(ground, clients=count, per_round=min(ground.per_round, count))
        lines: dict[tuple[str, str], list[list[Scores]]] = defaultdict(list)
        for apart in range(6):
            say(f"figure 4: K = {count}, {apart} classes differ")
            attacker = tuple(label - apart for label in VICTIM)
            cases = _cases(here.config(seeds, attacker), _attacks(adversaries, ways[0]))
            for way in ways:
                for index, attack in enumerate(_attacks(adversaries, way)):
                    scores = judge(cases, attack, index)[1]
                    lines[way, attack.adversary].append(scores)
                    unseen = [s["ssim"] for one in scores for s in one if s["class"] not in attacker]
                    head = {**_head("4", here, seeds, way), "seat": attack.adversary, "tap": attack.position.tap}
                    row = {**head, "differing": apart, "ssim_unseen": float(np.mean(unseen)) if unseen else None}
                    rows.append({**row, **_figures(cases, scores)})
        for (way, adversary), points in lines.items():
            rows.append({**_head("4", here, seeds, way), "seat": adversary, "trend": trend(points)})
        for way in ways:
            rows.append({**_head("4", here, seeds, way), "controls": controls(cases, _attacks(adversaries, way)[0])})
    return rows + more_clients(rows)


def trend(points: Sequence[Sequence[Scores]]) -> dict[str, Any]:
    """Slopes of SSIM per differing class, one for each seed, and unseen against seen; points by number of classes.

    `unseen_minus_seen`: for each seed and class the mean SSIM over the points at which the attacker lacks the class, less
    that over the others; then the mean over classes. The class is the same on both sides.
    """
    line = np.array([per_federation(scores, "ssim") for scores in points])  # [points, seeds]
    at = np.arange(len(points)) - (len(points) - 1) / 2
    slopes = at @ line / (at @ at)
    table = np.array([[[s["ssim"] for s in one] for one in scores] for scores in points])  # [points, seeds, classes]
    labels = np.array([s["class"] for s in points[0][0]])
    lacks = labels[None] > np.array(VICTIM)[-1] - np.arange(len(points))[:, None]  # [points, classes]
    unseen = np.nanmean(np.where(lacks[:, None], table, np.nan), axis=0)
    seen = np.nanmean(np.where(lacks[:, None], np.nan, table), axis=0)
    return {"slope": _with_interval(slopes), "unseen_minus_seen": _with_interval((unseen - seen).mean(axis=1))}


def more_clients(rows: Rows) -> Rows:
    """What the largest K changes against the smallest: each seed's mean SSIM over the points, one less the other."""
    points = [row for row in rows if "differing" in row]
    sizes = [row["setting"]["clients"] for row in points]
    few, many = min(sizes), max(sizes)
    made: Rows = []
    for line in dict.fromkeys((row["way"], row["seat"]) for row in points):
        mine = [row for row in points if (row["way"], row["seat"]) == line]
        lines = {size: [row["ssim_each"] for row in mine if row["setting"]["clients"] == size] for size in (few, many)}
        change = np.mean(lines[many], axis=0) - np.mean(lines[few], axis=0)
        head = {key: mine[0][key] for key in ("figure", "way", "setting", "seeds", "device", "versions", "seat")}
        setting = {**head["setting"], "clients": [few, many]}
        made.append({**head, "setting": setting, "more_clients": _with_interval(change)})
    return made


def _with_interval(values: np.ndarray) -> dict[str, Any]:
    return {"mean": float(values.mean()), "interval": list(mean_interval(values))}


# --- Fig 6(a) ------------------------------------------------------------------------------------------------------


def figure6a(
    ground: Ground = GROUND,
    *,
    sigmas: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0),
    modes: Sequence[str] = MODES,
    seeds: int = 5,
    ways: Sequence[str] = tuple(WAYS),
    say: Say = lambda _: None,
) -> Rows:
    """SSIM against σ for three adversaries under 2DP-FL, with server noise distinct, the same for all, or none.

    Besides: no defence at all (`sigma` null), and the clip without any noise (σ = 0). `epsilon` is the certificate of one
    record at the client tap, at the paper's δ.
    """
    points: list[tuple[float | None, str]] = [(None, "none"), (0.0, "none")]
    points += [(sigma, mode) for sigma in sigmas for mode in modes]
    rows: Rows = []
    proven: dict[float, float | None] = {}
    for sigma, mode in points:
        say(f"figure 6(a): sigma = {sigma}, server noise {mode}")
        config = ground.config(seeds, defense=None if sigma is None else ground.defense(sigma, mode))
        cases = _cases(config, _attacks(tuple(ADVERSARIES), ways[0]))
        if sigma and sigma not in proven:
            proven[sigma] = _certificate(config, ground.delta)
        noise = {"sigma": sigma, "server_noise_mode": mode, "epsilon": proven.get(sigma or 0.0), "delta": ground.delta}
        for way in ways:
            head = _head("6a", ground, seeds, way)
            for index, attack in enumerate(_attacks(tuple(ADVERSARIES), way)):
                where = {"seat": attack.adversary, "tap": attack.position.tap}
                rows.append({**head, **where, **noise, **_figures(cases, judge(cases, attack, index)[1])})
            if sigma is None:
                rows.append({**head, "controls": controls(cases, _attacks(("active",), way)[0])})
    return rows


def _certificate(config: Config, delta: float) -> float | None:
    """ε of one record against an adversary who sees what its client sends; of the plan, with secret draws."""
    made = plan(config)
    setting = as_planned(made.setting)
    planned = transcript.planned(made.defenses, setting, setting.rounds)
    row = ledger.certified(planned, "client", "example", delta)
    return row.epsilon if row.certified else None
