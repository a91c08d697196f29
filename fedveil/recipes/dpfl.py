"""dpfl: Tables II to IV, Figs 1 and 4 to 11.

The paper gives no clip α, number of rounds or local epochs: α = 1, 200 rounds and one epoch are our choice and part of
every cell's settings. Its text has "hundreds of global update epochs" (Section V-D), and after 200 rounds our training
without noise has the accuracy that it prints; the accuracy after 100 is a second measure. Readings of the text that have
rows of their own:

- What α bounds: the L1 norm of an update (Eq. 2), or each of its values (the note below Eq. 2; rows "clamp"). With the
  L1 norm, α scales clip and noise alike: it decides how far the model moves, not the share of noise in an update.
- Which layers get more of ε: those of larger PoGZ (Eq. 3), or less important ones (Section I; rows "inverse").
- The data of PoGZ: the client's training data, or a tenth of it that pre-training leaves out (rows "validation").
- The server's step: the mean of the updates, or Algorithm 3 line 10 as printed, which moves the model about a thousand
  times less. A row with the public set alone is the control.

 In the attacks a client
makes one SGD step on one example, so its update is its gradient, and the server attacks what it receives. The noise in
units of the gradient is then 2α/ε_i, whatever the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.recipes.cell import FULL, Cell, Chart, Measure, Recipe, Size

BUDGETS = ("0.5", "1", "5", "10")
ACCURACY = Measure("accuracy", "accuracy")
HALF = Measure("half", "accuracy after half of the rounds")
CLIPS = (1.0, 10.0, 30.0, 60.0)  # α of Table II; at the largest, even budgets come near the published 0.708 at ε = 10

# Section V-A: two classes per client and batches of 128, or equal parts of all ten and batches of 50.
CLASSES = ("data.partition=classes", "data.classes_per_client=2", "train.batch=128")
DATA: dict[str, tuple[str, ...]] = {
    "mnist": ("data.name=mnist", "data.split=dpfl", *CLASSES),
    "fashion-mnist": ("data.name=fashion-mnist", "data.split=dpfl", *CLASSES),
    "cifar10": ("data.name=cifar10", "data.split=dpfl", "data.partition=iid", "train.batch=50"),
}
CLIENTS = ("model.name=dpfl-net", "train.optimizer=adam", "train.lr=0.01", "train.batching=shuffle")

DPFL = ("defense.name=dpfl", "defense.clip=1.0")
CLAMP = (*DPFL, "defense.clip_norm=value")
INVERSE = "defense.allocation=inverse"
VALIDATION = "defense.validation=0.1"
BASELINE = ("defense.name=dpfl", "defense.clip=1e6", "defense.epsilon=1e15")  # selection and fine-tuning, no noise
PUBLIC_ONLY = ("defense.name=dpfl", "defense.public_only=true")
AS_PRINTED = ("defense.server_step=as-printed",)


def _budget(epsilon: str) -> str:
    return f"defense.epsilon={float(epsilon)}"


# --- Table II


def table_2(size: Size) -> list[Cell]:
    """Table II: by ε (rows), and by α and the readings of the clip (columns). PoGZ is that of examples held out."""
    setting = (
        "data.name=mnist", "data.split=dpfl", "data.partition=iid", "data.clients=1", "train.per_round=1",
        "train.local_epochs=1", "train.batch=128", *CLIENTS, "defense.name=none",
    )  # fmt: skip
    whole = (f"data.per_client={size.pick(full=50_000, quick=10_000)}", f"train.rounds={size.pick(full=40, quick=3)}")
    common = {"target": 0.983, "draws": size.pick(full=10, quick=3)}
    columns: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        f"clip {clip:g}": (whole, {"clip": clip}) for clip in size.pick(full=(CLIPS[0], CLIPS[-1]), quick=(1.0,))
    }
    if size.full:
        columns |= {f"clamp {clip:g}": (whole, {"clip": clip, "clip_norm": "value"}) for clip in CLIPS}
        part = ("data.per_client=45000", "train.rounds=40")  # 5,000 training images are the validation set
        more = {"clip": CLIPS[-1], "clip_norm": "value", "validation": True}
        columns[f"clamp {CLIPS[-1]:g}, PoGZ on validation"] = (part, more)
    return [
        Cell(f"ε = {epsilon}", column, "noised-epoch", (*setting, *sizes), {"epsilon": float(epsilon), **how, **common})
        for column, (sizes, how) in columns.items()
        for epsilon in size.pick(full=BUDGETS, quick=("0.5", "10"))
    ]


# --- Table III, Figs 4 to 6


def _federation(name: str, size: Size) -> tuple[str, ...]:
    """100 clients of 500 examples, 10 per round. Quick: 20 of 200, 4 per round, batches of 50, a public set of 500."""
    full = ("data.clients=100", "data.per_client=500", "train.per_round=10", "train.rounds=200", "train.local_epochs=1")
    few = (
        "data.clients=20", "data.per_client=200", "train.per_round=4", "train.rounds=10", "train.local_epochs=1",
        "train.batch=50", "train.eval_every=5", "defense.public=0.05",
    )  # fmt: skip
    return (*DATA[name], *CLIENTS, *size.pick(full=full, quick=few))


def _training(name: str, size: Size, row: str, column: str, how: tuple[str, ...], like: str = "") -> Cell:
    settings, printed = (*how, *_federation(name, size)), row.startswith("dpfl") and AS_PRINTED[0] in how
    seeds = size.pick(full=3, quick=1)
    return Cell(row, column, "curve", settings, seeds=seeds, like="" if like == row else like, as_printed=printed)


def _trainings(name: str, size: Size, epsilon: str) -> dict[str, tuple[str, ...]]:
    """The noised trainings at one ε, by the names of their rows."""
    made: dict[str, tuple[str, ...]] = {"dpfl": (*DPFL, _budget(epsilon))}
    if size.full or (name == "mnist" and epsilon == "10"):
        made["dpfl, server step as printed"] = (*DPFL, _budget(epsilon), *AS_PRINTED)
    if size.full:
        made["dpfl, clamp"] = (*CLAMP, _budget(epsilon))
    if size.full and epsilon in QUICK_BUDGETS:
        made["dpfl, clamp, inverse"] = (*CLAMP, _budget(epsilon), INVERSE)
        made["dpfl, clamp, validation"] = (*CLAMP, _budget(epsilon), VALIDATION)
    return made


UNNOISED = {"baseline": BASELINE, "public set only": PUBLIC_ONLY}
QUICK_BUDGETS = ("0.5", "10")


def table_3(size: Size) -> list[Cell]:
    """Table III: accuracy by ε, and of the public set alone."""
    made = []
    for name in DATA:
        made += [_training(name, size, row, name, how) for row, how in UNNOISED.items()]
        if size.full:
            printed = (*BASELINE, *AS_PRINTED)
            made.append(_training(name, size, "baseline, server step as printed", name, printed, like="baseline"))
        for epsilon in size.pick(full=BUDGETS, quick=QUICK_BUDGETS):
            for row, how in _trainings(name, size, epsilon).items():
                like = f"dpfl, ε = {epsilon}"
                made.append(_training(name, size, f"{row}, ε = {epsilon}", name, how, like=like))
        made += _slower(name) if size.full else []
    return made


def _slower(name: str) -> list[Cell]:
    """Two readings of what the paper leaves open, one seed each: a smaller learning rate, and a smaller clamp. The noise
    is in proportion to both."""
    if name == "mnist":  # reaches the published accuracy as it is
        return []
    slow, small = ("train.lr=0.001",), ("defense.clip=0.1",)
    trained: dict[str, tuple[str, tuple[str, ...]]] = {"baseline, lr 0.001": ("baseline", (*BASELINE, *slow))}
    for epsilon in BUDGETS[2:]:
        row = f"dpfl, ε = {epsilon}"
        trained[f"dpfl, clamp, lr 0.001, ε = {epsilon}"] = (row, (*CLAMP, _budget(epsilon), *slow))
        if name == "cifar10":
            trained[f"dpfl, clamp 0.1, ε = {epsilon}"] = (row, (*CLAMP, _budget(epsilon), *small))
    return [
        Cell(row, name, "curve", (*_federation(name, FULL), *how), like=like, note="one seed")
        for row, (like, how) in trained.items()
    ]


def _by_budget(name: str, size: Size) -> list[Cell]:
    """Figs 4 to 6: the trainings of Table III by ε; rows without noise repeat one result for every ε."""
    made = []
    for epsilon in size.pick(full=BUDGETS, quick=QUICK_BUDGETS):
        rows = {**UNNOISED, **_trainings(name, size, epsilon)}
        made += [_training(name, size, row, epsilon, how) for row, how in rows.items()]
    return made


# --- Table IV, Fig 11

MODELS = {"mnist": "mnist model", "cifar10": "cifar10 model"}


def _timed(name: str, size: Size) -> tuple[str, ...]:
    few = ("data.clients=10", "train.per_round=5", "data.per_client=200", "train.batch=50", "train.local_epochs=1")
    full = ("data.clients=100", "train.per_round=10", "data.per_client=500", "train.local_epochs=1")
    return (*DATA[name], *CLIENTS, *size.pick(full=full, quick=few))


def table_4(size: Size) -> list[Cell]:
    """Table IV: time to add noise to one update."""
    rows = {"dpfl": (*DPFL, "defense.finetune=false"), "lip": ("defense.name=lip", "defense.clip=1.0")}
    options = {"repeats": size.pick(full=200, quick=50)}
    return [
        Cell(row, column, "noise-time", (*how, *_timed(name, size)), options)
        for name, column in MODELS.items()
        for row, how in rows.items()
    ]


def fig_11(size: Size) -> list[Cell]:
    """Fig 11: computation time of a round."""
    public = size.pick(full=(), quick=("defense.public=0.05",))
    rows = {
        "none": ("defense.name=none",),
        "dpfl": (*DPFL, *public),
        "dpfl, no fine-tuning": (*DPFL, "defense.finetune=false"),
        "lip": ("defense.name=lip", "defense.clip=1.0"),
    }
    rows = rows if size.full else {row: rows[row] for row in ("none", "dpfl", "lip")}
    options = {"rounds": size.pick(full=20, quick=4)}
    return [
        Cell(row, column, "round-time", (*how, *_timed(name, size)), options)
        for name, column in MODELS.items()
        for row, how in rows.items()
    ]


# --- Figs 1 and 7 to 10: one example, one step, at the server

ATTACKED = (
    "model.name=dpfl-net", "model.init=uniform-0.5", "train.lr=0.01", "train.local_steps=1", "train.batching=shuffle",
    "attack.tap=server",
)  # fmt: skip
DLG = ("attack.name=dlg",)
COSINE = ("attack.name=inverting", "attack.label=given")
ITERATIONS = {DLG: {"full": 300, "quick": 60}, COSINE: {"full": 4800, "quick": 400}}
NOISED = (*DPFL, "defense.finetune=false", "defense.selection=uniform")
UNPROTECTED = ("defense.name=none",)
CLIPPED = (*NOISED, "defense.epsilon=1e15")
LIP = ("defense.name=lip", "defense.clip=1.0", "defense.epsilon=10.0")
CONVOLUTIONS = {
    "mnist": ["conv1", "conv2"],
    "fashion-mnist": ["conv1", "conv2"],
    "cifar10": ["conv1", "conv2", "conv3"],
}


def _attacked(name: str, size: Size, attack: tuple[str, ...]) -> tuple[str, ...]:
    """16 images of 16 clients; the quick size has 4 images and fewer iterations."""
    images = size.pick(full=16, quick=4)
    few = (f"data.clients={images}", f"attack.images={images}", f"data.per_client={size.pick(full=500, quick=100)}")
    return (
        *DATA[name],
        *ATTACKED,
        "train.batch=1",
        *few,
        *attack,
        f"attack.iterations={size.pick(**ITERATIONS[attack])}",
    )


def _attack(
    name: str,
    size: Size,
    row: str,
    how: tuple[str, ...],
    attack: tuple[str, ...],
    layers: list[str] | None = None,
    column: str | None = None,
) -> Cell:
    """One attack study. `layers`: the layers whose gradients the attacker matches (None: all)."""
    options: Mapping[str, Any] = {} if layers is None else {"layers": layers}
    return Cell(row, column or name, "attack-layers", (*how, *_attacked(name, size, attack)), options)


def fig_1(size: Size) -> list[Cell]:
    """Fig 1: DLG on all layers, on convolutions and on the dense layer."""
    made = []
    for name in size.pick(full=("mnist", "cifar10"), quick=("mnist",)):
        convolutions = CONVOLUTIONS[name]
        made += [
            _attack(name, size, "none, all layers", UNPROTECTED, DLG),
            _attack(name, size, "lip, convolutions", LIP, DLG, convolutions),
            _attack(name, size, "lip, dense layer", LIP, DLG, ["dense"]),
        ]
        if size.full:
            made += [
                _attack(name, size, "none, convolutions", UNPROTECTED, DLG, convolutions),
                _attack(name, size, "none, dense layer", UNPROTECTED, DLG, ["dense"]),
                _attack(name, size, "lip, convolutions, cosine", LIP, COSINE, convolutions),
            ]
    return made


PROTECTED = {
    "none": UNPROTECTED,
    "clip alone": CLIPPED,
    **{f"dpfl, ε = {epsilon}": (*NOISED, _budget(epsilon)) for epsilon in reversed(BUDGETS)},
    "dpfl, clamp, ε = 10": (*NOISED, "defense.clip_norm=value", _budget("10")),
}


def _studies(size: Size, attack: tuple[str, ...], quick: Mapping[str, tuple[str, ...]]) -> list[Cell]:
    """No defence, the clip alone, DPFL at each ε, its clamp at ε = 10. `quick`: the rows of each dataset in that size."""
    kept = size.pick(full=dict.fromkeys(DATA, tuple(PROTECTED)), quick=quick)
    return [_attack(name, size, row, PROTECTED[row], attack) for name, rows in kept.items() for row in rows]


def fig_7(size: Size) -> list[Cell]:
    """Figs 7 and 8: DLG by squared distance, and its loss."""
    few = {"mnist": ("none", "clip alone", "dpfl, ε = 10", "dpfl, ε = 0.5"), "cifar10": ("none", "dpfl, ε = 10")}
    return _studies(size, DLG, few)


def fig_9(size: Size) -> list[Cell]:
    """Fig 9: DLG by cosine distance."""
    return _studies(size, COSINE, {"mnist": ("none", "dpfl, ε = 10")})


def _noised(*layers: str) -> tuple[str, ...]:
    names = ", ".join(f'"{layer}"' for layer in layers)
    return (*LIP, f"defense.layers=[{names}]")


def fig_10(size: Size) -> list[Cell]:
    """Fig 10: noise on some layers; one attacker matches all layers, another leaves out the noised ones."""
    rows = {
        "none": (UNPROTECTED, None),
        "noise on conv1 and dense": (_noised("conv1", "dense"), ["conv2"]),
        "noise on conv2 and dense": (_noised("conv2", "dense"), ["conv1"]),
        "noise on all layers": (_noised("conv1", "conv2", "dense"), None),
    }
    made = []
    for row, (how, clean) in rows.items():
        made.append(_attack("mnist", size, row, how, COSINE, column="all layers matched"))
        if clean is not None:
            made.append(_attack("mnist", size, row, how, COSINE, clean, column="clean layers matched"))
    return made


CONTENT = Measure("success_rate", "content recovered")
SSIM = Measure("ssim", "SSIM")
MSE = Measure("mse", "mean square error", 4)
LOSS = Measure("loss.end", "loss at the end", 4)
SMALLER_TRAINING = (
    "20 clients of 200 examples, 4 per round, 10 rounds, batches of 50, a public set of 500; ε of 0.5 and 10; one seed"
)
SMALLER_ATTACK = "4 images, 60 iterations of L-BFGS or 400 of Adam, fewer rows"
PUBLIC = (
    "the paper gives neither clip nor rounds. With the L1 norm of Eq. 2 the noise in an update is many times the clipped "
    "update, whatever the clip; rows `clamp` limit each value instead. The public set comes from the test images; the row "
    "with the public set alone shows how much of the accuracy it explains"
)


def _accuracy_figure(number: int, data: str, what: str) -> Recipe:
    """Figs 4 to 6: accuracy by ε on one dataset."""
    return Recipe(
        f"dpfl/fig-{number}",
        f"Accuracy by ε, {what}",
        lambda size: _by_budget(data, size),
        (ACCURACY, HALF),
        SMALLER_TRAINING,
        why=PUBLIC,
        chart=Chart("accuracy", "ε", "accuracy", x_log=True),
    )


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "dpfl/table-2",
        "Accuracy of a trained model after one noised epoch, ε by PoGZ or evenly (MNIST)",
        table_2,
        (
            Measure("baseline_accuracy", "accuracy before"),
            Measure("pogz", "accuracy, ε by PoGZ"),
            Measure("inverse", "accuracy, ε by 1/PoGZ"),
            Measure("even", "accuracy, ε evenly"),
            Measure("promotion", "PoGZ over even, less 1"),
            Measure("inverse_promotion", "1/PoGZ over even, less 1"),
        ),
        "10,000 images, 3 epochs, two ε, 3 draws of the noise",
        why="the paper gives no clip α, to which the noise is proportional: a range is shown, for a clip of the L1 norm "
        "and for a clamp of each value. Eq. 3 gives layers with few positive outputs less of ε and so more noise. "
        "Section I says the opposite, which is ε by 1/PoGZ here. PoGZ is measured on the public set, or on 5,000 of the "
        "training images that are held out",
    ),
    Recipe(
        "dpfl/table-3",
        "Accuracy of the global model by ε, and of the public set alone",
        table_3,
        (ACCURACY, HALF),
        SMALLER_TRAINING,
        why=PUBLIC,
    ),
    Recipe(
        "dpfl/table-4",
        "Time to noise one update",
        table_4,
        (Measure("milliseconds", "ms for one update", 4),),
        "10 clients, 50 repetitions",
        why="here each defence is one compiled program, and both draw the same number of values; LIP's published time is "
        "that of its implementation. As in the paper, the times do not include the importances, which are measured once",
    ),
    Recipe(
        "dpfl/fig-1",
        "DLG on all layers, and on convolutions or the dense layer alone under LIP (ε = 10)",
        fig_1,
        (CONTENT, SSIM, MSE, LOSS),
        f"{SMALLER_ATTACK}; MNIST alone",
        why="LIP's clip shortens gradients with a larger L1 norm. This misleads an attack that matches squared "
        "distance, but not one that matches the cosine. The dense layer alone does not reveal the image even without noise",
    ),
    _accuracy_figure(4, "mnist", "MNIST, two classes per client"),
    _accuracy_figure(5, "fashion-mnist", "Fashion-MNIST, two classes per client"),
    _accuracy_figure(6, "cifar10", "CIFAR-10, i.i.d. clients"),
    Recipe(
        "dpfl/fig-7",
        "DLG by squared distance against DPFL on all layers",
        fig_7,
        (CONTENT, SSIM, MSE),
        f"{SMALLER_ATTACK}; MNIST and CIFAR-10",
        why="an active clip misleads an attack by squared distance even without noise: the row `clip alone` "
        "separates the two effects. In the row `clamp` no value reaches the bound",
    ),
    Recipe(
        "dpfl/fig-8",
        "The loss of DLG by ε",
        fig_7,
        (
            Measure("loss.0", "loss at the start", 4),
            Measure("loss.1", "after 1 iteration", 4),
            Measure("loss.10", "after 10", 4),
            Measure("loss.30", "after 30", 4),
            Measure("loss.100", "after 100", 4),
            LOSS,
        ),
        f"{SMALLER_ATTACK}; MNIST and CIFAR-10",
        why="one iteration here is up to 20 steps of L-BFGS. The loss ends near the squared noise in the gradient, "
        "whatever is recovered: it shows the amount of noise, not the protection",
    ),
    Recipe(
        "dpfl/fig-9",
        "DLG by cosine (inverting gradients) against DPFL on all layers",
        fig_9,
        (CONTENT, SSIM, MSE),
        f"{SMALLER_ATTACK}; MNIST alone",
        why="the attacker knows the labels, as in the paper of the attack",
    ),
    Recipe(
        "dpfl/fig-10",
        "DLG by cosine with noise on some layers only (ε = 10, MNIST)",
        fig_10,
        (CONTENT, SSIM, MSE),
        "4 images, 400 iterations",
        why="an attacker who knows which layers have noise leaves them out; one who matches all layers is hampered by the "
        "noise. The gradient of CONV1 alone was not enough here",
    ),
    Recipe(
        "dpfl/fig-11",
        "Computation of a round with DPFL and with LIP",
        fig_11,
        (Measure("milliseconds", "ms per client and local iteration", 3),),
        "10 clients, 5 per round, 200 examples each, 4 rounds; a public set of 500",
        why="the time is that of whole rounds, including training and fine-tuning, not of the noise alone",
    ),
)
