"""2dp-fl: Figs 3 to 7, MNIST in label groups.

The paper gives K, U, T and δ. The rest is our choice and part of every cell's settings: logistic regression (which the
paper calls reversible), clients of 500 images, 5 local steps on batches of 50, learning rate 0.5, G = 1. The paper
does not define its constant from ε to σ. Where it gives an ε, the ledger finds the σ that certifies this ε for one
record at the client tap; the server's noise has the same σ.

NbAFL's clip C and exposures L are not given either. Its budget of 20 is spent at round 31, so its rows have 31 rounds; the
main row has C = 10 and L = 1. C bounds the model itself, and a useful model is longer than 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedveil.recipes.cell import Cell, Chart, Measure, Recipe, Size

DELTA = 1e-3
VICTIM = (5, 6, 7, 8, 9)
ATTACKER = (0, 1, 2, 3, 4)
TAPS = {"passive-local": "broadcast", "passive-global": "broadcast", "active": "server"}  # by adversary

NONE = ("defense.name=none",)
TWO_DP = ("defense.name=2dp-fl", "defense.clip=1.0")
NO_SERVER_NOISE = (*TWO_DP, "defense.server_noise_mode=none")
NBAFL = ("defense.name=nbafl", "defense.epsilon=20.0", f"defense.delta={DELTA}")
WIDE, NARROW, ONE_UPLOAD = "defense.clip=10.0", "defense.clip=1.0", "defense.exposures=1"


def _federation(size: Size, clients: int = 50, per_round: int = 10, per_client: int = 500) -> tuple[str, ...]:
    """K = 50, U = 10, T = 50 unless a figure varies them; T = 10 in the quick size."""
    return (
        "data.name=mnist",
        "data.partition=groups-disjoint",
        f"data.clients={clients}",
        f"data.per_client={per_client}",
        "model.name=logistic",
        f"train.rounds={size.pick(full=50, quick=10)}",
        f"train.per_round={per_round}",
        "train.sampling=fixed",
        "train.local_steps=5",
        "train.batch=50",
        "train.lr=0.5",
        "train.aggregation=fedavg",
        "train.weights=size",
    )


# --- Figs 3, 4 and 6(a): model inversion


def _sigma(sigma: float, mode: str = "distinct") -> tuple[str, ...]:
    noise = (f"defense.noise={sigma}", f"defense.server_noise={sigma}", f"defense.server_noise_mode={mode}")
    return (*TWO_DP, *noise, f"defense.delta={DELTA}")


def _inversion(
    size: Size,
    row: str,
    column: str,
    adversary: str,
    defense: tuple[str, ...],
    *more: str,
    attacker: tuple[int, ...] = ATTACKER,
    clients: int = 50,
) -> Cell:
    """Client 0 is the attacker, client 1 the victim; each seed is a separate federation."""
    sets = f"data.label_sets=[{list(attacker)}, {list(VICTIM)}]"
    attack = ("attack.name=inversion", f"attack.adversary={adversary}", f"attack.tap={TAPS[adversary]}")
    seeds = f"attack.seeds={size.pick(full=5, quick=1)}"
    return Cell(row, column, "infer", (*_federation(size, clients), sets, *defense, *attack, seeds, *more))


def fig_3(size: Size) -> list[Cell]:
    """Fig 3: without a defence and under 2DP-FL at σ = 1, by adversary; the full size has two more inversion methods."""
    ways: dict[str, tuple[str, ...]] = {"": ()}
    if size.full:
        ways |= {", smoothed": ("attack.tv=30.0",), ", solved": ("attack.method=closed",)}
    defenses = {"none": NONE, "2dp-fl, σ = 1": _sigma(1.0)}
    return [
        _inversion(size, f"{name}{way}", adversary, adversary, defense, *how)
        for way, how in ways.items()
        for name, defense in defenses.items()
        for adversary in TAPS
    ]


def fig_4(size: Size) -> list[Cell]:
    """Fig 4: by the number of classes in which attacker and victim differ. The victim's five classes stay the same."""
    more = size.pick(full=("attack.seeds=10",), quick=())  # federations: the differences are small
    made = []
    for clients in size.pick(full=(10, 20, 50), quick=(50,)):
        for adversary in ("passive-local", "passive-global"):
            for apart in size.pick(full=range(6), quick=(0, 5)):
                attacker = tuple(label - apart for label in VICTIM)
                row = f"K = {clients}, {adversary}"
                made.append(
                    _inversion(size, row, str(apart), adversary, NONE, *more, attacker=attacker, clients=clients)
                )
    return made


def _by_sigma(size: Size) -> list[Cell]:
    """Fig 6(a): by σ. Rows without noise repeat one result for every σ."""
    made = []
    sigmas = size.pick(full=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), quick=(0.1, 1.0))
    for adversary in TAPS:
        for sigma in sigmas:
            made.append(_inversion(size, f"{adversary}, 2dp-fl", f"{sigma:g}", adversary, _sigma(sigma)))
            made.append(_inversion(size, f"{adversary}, none", f"{sigma:g}", adversary, NONE))
            if size.full and sigma in (0.1, 1.0, 10.0):
                for mode in ("same", "none"):
                    row = f"{adversary}, 2dp-fl, server noise {mode}"
                    made.append(_inversion(size, row, f"{sigma:g}", adversary, _sigma(sigma, mode)))
    return made


# --- Figs 5, 6(b) and 7: convergence, accuracy, ε


def _at(epsilon: float, delta: float = DELTA) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": delta}


def _training(size: Size, row: str, column: str, defense: tuple[str, ...], **options: Any) -> Cell:
    return Cell(row, column, "curve", (*_federation(size), *defense), options, seeds=size.pick(full=3, quick=1))


def _certified(size: Size, row: str, column: str, defense: tuple[str, ...], epsilon: float, delta: float) -> Cell:
    """A training with the σ that the ledger certifies for (ε, δ)."""
    return _training(size, row, column, (*defense, f"defense.delta={delta}"), **_at(epsilon, delta))


def fig_5(size: Size) -> list[Cell]:
    """Fig 5: accuracy by δ (rows) and ε (columns). δ varies at ε = 5."""
    made = []
    for epsilon in size.pick(full=(1.0, 2.0, 5.0, 10.0, 20.0), quick=(5.0, 20.0)):
        made.append(_certified(size, "2dp-fl, δ = 0.001", f"{epsilon:g}", TWO_DP, epsilon, DELTA))
        if size.full or epsilon == 20.0:
            row = "2dp-fl, δ = 0.001, no server noise"
            made.append(_certified(size, row, f"{epsilon:g}", NO_SERVER_NOISE, epsilon, DELTA))
        made.append(_training(size, "none", f"{epsilon:g}", NONE))
    for delta in size.pick(full=(1e-4, 1e-5), quick=(1e-5,)):
        made.append(_certified(size, f"2dp-fl, δ = {delta:g}", "5", TWO_DP, 5.0, delta))
    return made


def _reading(cell: Cell) -> Cell:
    """A cell compared with the row of the paper that stands before the comma of its own."""
    like, comma, _ = cell.row.partition(", ")
    return replace(cell, like=like) if comma else cell


def _by_defense(size: Size) -> list[Cell]:
    """Fig 6(b): accuracy by defence at ε = 20."""
    column = "ε = 20"
    made = [
        _training(size, "none", column, NONE),
        _certified(size, "2dp-fl", column, TWO_DP, 20.0, DELTA),
        _reading(_certified(size, "2dp-fl, no server noise", column, NO_SERVER_NOISE, 20.0, DELTA)),
    ]
    if not size.full:
        return [*made, _reading(_training(size, "nbafl, C = 1, noise for every upload", column, (*NBAFL, NARROW)))]
    ways = {
        "nbafl": (WIDE, ONE_UPLOAD, "train.rounds=31"),
        "nbafl, 50 rounds": (WIDE, ONE_UPLOAD),
        "nbafl, noise for every upload": (WIDE, "train.rounds=31"),
        "nbafl, C = 1": (NARROW, ONE_UPLOAD, "train.rounds=31"),
        "nbafl, C = 1, noise for every upload": (NARROW, "train.rounds=31"),
    }
    made += [_reading(_training(size, row, column, (*NBAFL, *how))) for row, how in ways.items()]
    certified = {**_at(20.0), "tap": "server", "unit": "example"}
    settings = (*_federation(size), *NBAFL, WIDE)
    return [*made, Cell("nbafl, certified", column, "calibrated", settings, certified, seeds=3)]


def fig_6(size: Size) -> list[Cell]:
    """Fig 6: (a) inversion by σ, (b) accuracy by defence."""
    return _by_sigma(size) + _by_defense(size)


def fig_7(size: Size) -> list[Cell]:
    """Fig 7: by K (rows) and U (columns) at σ = 1. Clients have 300 images, so that all are equal at every K."""
    few = ((20, 10), (50, 10), (50, 20))
    made = []
    for clients, chosen in sorted(size.pick(full=(*few, (50, 5), (50, 40), (100, 10)), quick=few)):
        federation = _federation(size, clients, chosen, per_client=300)
        for mode, name in (("distinct", ""), ("same", ", the same server noise for all")):
            settings = (*federation, *_sigma(1.0, mode))
            seeds = size.pick(full=3, quick=1)
            made.append(Cell(f"K = {clients}{name}", str(chosen), "curve", settings, seeds=seeds))
    return made


SSIM = Measure("ssim", "SSIM")
RECOGNISED = Measure("recognised_rate", "nearest class mean is its own")
UNTRAINED = Measure("controls.untrained.ssim", "SSIM from the untrained model")
ACCURACY = Measure("accuracy", "accuracy")
FIFTH = Measure("fifth", "accuracy after a fifth of the rounds")
LOSS = Measure("loss", "loss")
NOISE = Measure("noise", "σ")
EPSILON = Measure("epsilon", "certified ε of one record", 2)
FEWER = "10 rounds, one seed"

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "2dp-fl/fig-3",
        "Model inversion of a victim's classes by three adversaries, without a defence and under 2DP-FL",
        fig_3,
        (SSIM, RECOGNISED, UNTRAINED),
        FEWER,
        why="SSIM is that to the mean of the victim's class, because an inversion has no single target picture. The "
        "result of the same attack on an untrained model is shown as a control",
    ),
    Recipe(
        "2dp-fl/fig-4",
        "Model inversion against the number of classes in which attacker and victim differ",
        fig_4,
        (SSIM, RECOGNISED),
        f"{FEWER}, K = 50 alone, 0 and 5 classes",
        why="the global model has learnt all classes, whichever classes one client has; a local model has forgotten "
        "some of the classes that its client lacks",
        chart=Chart("ssim", "classes in which attacker and victim differ", "SSIM"),
    ),
    Recipe(
        "2dp-fl/fig-5",
        "Convergence and accuracy of 2DP-FL by ε and δ",
        fig_5,
        (ACCURACY, FIFTH, LOSS, NOISE),
        f"{FEWER}, fewer ε and δ",
        why="the paper does not define its constant from ε to σ: ours is the smallest σ that the ledger certifies for one "
        "record at the client tap, and the server's noise has the same σ",
        chart=Chart("accuracy", "ε", "accuracy", x_log=True),
    ),
    Recipe(
        "2dp-fl/fig-6",
        "Model inversion by σ; accuracy at ε = 20 beside NbAFL",
        fig_6,
        (SSIM, RECOGNISED, ACCURACY, EPSILON),
        f"{FEWER}, two σ, NbAFL with C = 1 over 10 rounds",
        why="the ε of NbAFL is the claim of its formula, whose sensitivity of 2C/m does not hold for a clipped model; its "
        "certified row is accounted for as 2DP-FL is. The paper gives neither C nor the exposures L. C = 1 keeps the "
        "model shorter than a useful one is, and noise for every upload is as many times larger as there are rounds. The "
        "server's noise of NbAFL grows with the rounds that are planned, so a run of 50 rounds ends below one of 31",
        chart=Chart("ssim", "σ", "SSIM", x_log=True),
    ),
    Recipe(
        "2dp-fl/fig-7",
        "Accuracy and certified ε by the number of clients and of those chosen",
        fig_7,
        (ACCURACY, FIFTH, EPSILON, Measure("client_epsilon", "certified ε of one client", 1)),
        f"{FEWER}, three pairs of K and U",
        why="with more clients each takes part less often, so the certified ε falls with K, where the paper's figure "
        "rises. Separate server noise for each receiver has no certificate; one draw for all has one",
        chart=Chart("accuracy", "U, clients per round", "accuracy"),
    ),
)
