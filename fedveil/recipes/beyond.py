"""Beyond the papers: the accuracy that can be had at a certified ε, all defences on common ground.

MNIST without copies (100 clients with 500 images each, all of them different), unit one distinct image, tap release,
δ = 1e-5. The noise of each defence is calibrated by the ledger to the ε of the column, so that what is compared is
certified. Learning rates, clips and sizes were chosen on the validation part, whose accuracy is shown: that choice is not
accounted for.
"""

from __future__ import annotations

from fedveil.recipes.cell import Cell, Chart, Measure, Recipe, Size

COMMON = ("data.name=mnist", "data.clients=100", "data.partition=iid", "data.per_client=500")
ONE_STEP = (
    "train.local_steps=1", "train.server_momentum=0.9", "train.lr_end=0.1", "model.activation=tanh",
)  # fmt: skip
FLAT = ("defense.name=fed-cdp", "defense.clip=1.0", "defense.clip_scope=flat")
DEFENCES: dict[str, tuple[str, ...]] = {
    "fed-cdp cohort, secure aggregation": (
        *FLAT, "defense.placement=cohort", *ONE_STEP, "train.per_round=100", "train.batch=50", "train.lr=1.0",
        "train.rounds=400", "train.secure_aggregation=true",
    ),
    "fed-cdp batch": (
        *FLAT, "defense.placement=batch", *ONE_STEP, "train.per_round=100", "train.batch=50", "train.lr=0.5",
        "train.rounds=200",
    ),
    "fed-cdp example": (
        *FLAT, "defense.placement=example", *ONE_STEP, "train.per_round=100", "train.batch=50", "train.lr=0.5",
        "train.rounds=200",
    ),
    "fed-sdp server-sum": (
        "defense.name=fed-sdp", "defense.clip=0.5", "defense.clip_scope=flat", "train.local_steps=20", "train.batch=25",
        "train.lr=0.1", "train.rounds=100", "train.per_round=50", "model.activation=tanh",
    ),
    "2dp-fl": (
        "defense.name=2dp-fl", "defense.clip=1.0", "defense.server_noise_mode=none", "train.local_steps=1",
        "train.per_round=100", "train.batch=50", "train.lr=0.5", "train.rounds=200", "model.activation=tanh",
        "train.aggregation=fedavg",
    ),
}  # fmt: skip
GOAL = {"delta": 1e-5, "tap": "release", "unit": "image"}


def accuracy_by_epsilon(size: Size) -> list[Cell]:
    """Each defence at each ε; non-private training of the same steps beside them."""
    few = () if size.full else ("train.rounds=20", "data.clients=20", "train.per_round=20")
    made = []
    for row, how in DEFENCES.items():
        for epsilon in size.pick(full=(0.25, 0.8227, 2.0, 8.0), quick=(0.8227, 8.0)):
            setting = (*COMMON, *how, *few)
            seeds = size.pick(full=3, quick=1)
            made.append(Cell(row, f"{epsilon:g}", "calibrated", setting, {**GOAL, "epsilon": epsilon}, seeds=seeds))
    return made


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "beyond/fig-1",
        "MNIST: accuracy against certified ε, one distinct image, tap release, δ = 1e-5",
        accuracy_by_epsilon,
        (Measure("accuracy", "accuracy", 4), Measure("epsilon", "certified ε", 4), Measure("noise", "noise", 3)),
        "20 clients, 20 rounds, one seed, two ε",
        chart=Chart("accuracy", "certified ε", "validation accuracy", x_log=True),
    ),
)
