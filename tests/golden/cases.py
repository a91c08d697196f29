"""The grid, in short form: what is left out is filled in when the record is made. QUICK is what `make test` runs."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

SMALL: Document = {
    "preset": "paper",
    "data": {"name": "digits", "partition": "shards", "clients": 8, "per_client": 20, "classes_per_client": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 3, "per_round": 4, "local_steps": 2, "batch": 4, "lr": 0.1, "seed": 7},
    "speed": {"precision": "float64"},
}
# Every client and every example at most once, the count known: what private defences do not take by default.
EXACT = {"train.sampling": "fixed", "train.batching": "shuffle"}
POISSON = {"train.sampling": "poisson", "train.batching": "poisson"}
CNN = {"model": {"name": "cnn"}}
LENET = {"model": {"name": "lenet-dlg", "channels": 4}}


def case(*defenses: Document, **changes: Any) -> Document:
    """The small federation with defences. `changes` are whole sections, or `section.key`."""
    made = {section: dict(keys) if isinstance(keys, dict) else keys for section, keys in SMALL.items()}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            made[section][name] = value
        else:
            made[section] = value
    return {**made, "defense": [dict(defense) for defense in defenses] or [{"name": "none"}]}


# --- defences ----------------------------------------------------------------------------------------------------


def fed_sdp(**keys: Any) -> Document:
    return {"name": "fed-sdp", "clip": 0.5, "noise": 1.2, **keys}


def fed_cdp(**keys: Any) -> Document:
    return {"name": "fed-cdp", "clip": 0.5, "noise": 1.5, **keys}


def two_dp(**keys: Any) -> Document:
    return {"name": "2dp-fl", "clip": 0.8, "noise": 0.9, "server_noise": 0.7, **keys}


def nbafl(**keys: Any) -> Document:
    return {"name": "nbafl", "clip": 3.0, "epsilon": 30.0, "delta": 1e-3, **keys}


def dpfl(**keys: Any) -> Document:
    return {"name": "dpfl", "clip": 1.0, "epsilon": 10.0, **keys}


def dssgd(**keys: Any) -> Document:
    return {"name": "dssgd", "share": 0.3, **keys}


def _fed_sdp() -> dict[str, Document]:
    made = {
        f"fed-sdp {placement} {scope}": case(fed_sdp(placement=placement, clip_scope=scope))
        for placement in ("server-sum", "server-each", "client")
        for scope in ("layerwise", "flat")
    }
    return made | {
        "fed-sdp client fixed shuffle": case(fed_sdp(placement="client"), **EXACT),
        "fed-sdp server-sum fixed shuffle": case(fed_sdp(), **EXACT),
        "fed-sdp clip_end cosine": case(fed_sdp(clip_end=0.2, schedule="cosine")),
        "fed-sdp noise_end exponential": case(fed_sdp(placement="client", noise_end=0.6, schedule="exponential")),
        "fed-sdp size quantity": case(
            fed_sdp(placement="client"), data=_digits("quantity", alpha=2.0), **{"train.weights": "size"}
        ),
        "fed-sdp dropout late": case(
            fed_sdp(placement="client"), **EXACT, **{"train.dropout": 0.3, "train.late": 0.3, "train.rounds": 4}
        ),
        "fed-sdp secure aggregation": case(fed_sdp(placement="client"), **{"train.secure_aggregation": True}),
        "fed-sdp budget": case(
            fed_sdp(noise=2.0), **{"train.budget": {"epsilon": 5.0, "delta": 1e-5, "unit": "client"}, "train.rounds": 9}
        ),
        "fed-sdp cnn": case(fed_sdp(), **CNN),
    }


def _fed_cdp() -> dict[str, Document]:
    made = {
        f"fed-cdp {placement} {scope}": case(fed_cdp(placement=placement, clip_scope=scope))
        for placement in ("example", "batch", "cohort")
        for scope in ("layerwise", "flat")
    }
    lr = {"train.lr_end": 0.02}
    return made | {
        "fed-cdp example median layerwise": case(fed_cdp(clip_mode="median")),
        "fed-cdp batch median flat": case(fed_cdp(placement="batch", clip_mode="median", clip_scope="flat")),
        "fed-cdp example lr": case(fed_cdp(clip_mode="lr"), **lr),
        "fed-cdp batch lr flat": case(fed_cdp(placement="batch", clip_mode="lr", clip_scope="flat"), **lr),
        "fed-cdp clip_end linear": case(fed_cdp(clip=0.9, clip_end=0.3)),
        "fed-cdp clip_end staircase": case(fed_cdp(placement="batch", clip=0.9, clip_end=0.3, schedule="staircase")),
        "fed-cdp noise_end linear": case(fed_cdp(placement="batch", noise_end=0.5)),
        "fed-cdp noise_end exponential flat": case(fed_cdp(noise_end=0.5, schedule="exponential", clip_scope="flat")),
        "fed-cdp fixed shuffle": case(fed_cdp(), **EXACT),
        "fed-cdp batch without-replacement": case(
            fed_cdp(placement="batch"),
            **{"train.sampling": "with-replacement", "train.batching": "without-replacement"},
        ),
        "fed-cdp epochs": case(
            fed_cdp(placement="batch"),
            **{"train.local_steps": None, "train.local_epochs": 1, "train.batching": "shuffle"},
        ),
        "fed-cdp one step": case(fed_cdp(placement="cohort"), **{"train.local_steps": 1}),
        "fed-cdp adam": case(fed_cdp(), **{"train.optimizer": "adam", "train.lr": 0.01}),
        "fed-cdp copies": case(fed_cdp(placement="batch"), data=_digits("copies")),
        "fed-cdp cnn": case(fed_cdp(), **CNN),
        "fed-cdp cnn flat": case(fed_cdp(placement="batch", clip_scope="flat"), **CNN),
    }


def _models_averaged() -> dict[str, Document]:
    made = {f"2dp-fl {mode}": case(two_dp(server_noise_mode=mode)) for mode in ("distinct", "same", "none")}
    return made | {
        "2dp-fl fixed shuffle": case(two_dp(), **EXACT),
        "2dp-fl size": case(two_dp(), data=_digits("quantity", alpha=2.0), **{"train.weights": "size"}),
        "2dp-fl fedsgd": case(two_dp(server_noise_mode="same"), **{"train.aggregation": "fedsgd"}),
        "nbafl": case(nbafl()),
        "nbafl fixed shuffle": case(nbafl(), **EXACT),
        "nbafl exposures": case(nbafl(exposures=1), **EXACT),
    }


def _laplace() -> dict[str, Document]:
    made = {
        f"dpfl {allocation} {selection} {step}": case(
            dpfl(allocation=allocation, selection=selection, server_step=step)
        )
        for allocation in ("pogz", "even")
        for selection in ("active", "uniform")
        for step in ("mean", "as-printed")
    }
    return made | {
        "dpfl no finetune": case(dpfl(finetune=False, allocation="even", selection="uniform"), **EXACT),
        "dpfl public only": case(dpfl(public_only=True, public=0.2)),
        "dpfl lenet": case(dpfl(), **LENET),
        "lip": case({"name": "lip", "clip": 1.0, "epsilon": 10.0}),
        "lip layers": case({"name": "lip", "clip": 1.0, "epsilon": 10.0, "layers": ["dense"]}),
        "lip lenet": case({"name": "lip", "clip": 1.0, "epsilon": 10.0}, **LENET),
    }


def _sparse() -> dict[str, Document]:
    made: dict[str, Document] = {}
    for stage in ("example", "batch", "upload"):
        for pick in ("largest", "random"):
            made[f"dssgd {pick} {stage}"] = case(dssgd(pick=pick, stage=stage))
        for pick, law in (("largest", "gaussian"), ("random", "laplace")):
            made[f"dssgd {pick} {stage} {law}"] = case(dssgd(pick=pick, stage=stage, law=law, scale=0.02))
        made[f"prune {stage}"] = case({"name": "prune", "share": 0.4, "stage": stage})
        for law in ("gaussian", "laplace"):
            made[f"gradient-noise {law} {stage}"] = case(
                {"name": "gradient-noise", "law": law, "scale": 0.05, "stage": stage}
            )
    for stage in ("batch", "upload"):
        made[f"dgc {stage}"] = case({"name": "dgc", "share": 0.4, "stage": stage})
    return made | {
        "gradient-noise poisson": case({"name": "gradient-noise", "scale": 0.05, "stage": "example"}, **POISSON),
        "prune example poisson": case({"name": "prune", "share": 0.4, "stage": "example"}, **POISSON),
        "low-rank upload": case({"name": "low-rank", "rank": 2, "stage": "upload"}),
        "squeeze": case({"name": "squeeze", "steps": 3}, **{"train.local_steps": 3}),
    }


def _combined() -> dict[str, Document]:
    dgc, prune = {"name": "dgc", "share": 0.4}, {"name": "prune", "share": 0.4}
    noise = {"name": "gradient-noise", "scale": 0.02}
    return {
        "dgc batch + fed-sdp client": case({**dgc, "stage": "batch"}, fed_sdp(placement="client")),
        "fed-cdp + prune example": case(fed_cdp(), {**prune, "stage": "example"}),
        "prune example + fed-cdp batch": case({**prune, "stage": "example"}, fed_cdp(placement="batch")),
        "fed-cdp + fed-sdp": case(fed_cdp(placement="batch"), fed_sdp()),
        "fed-sdp client + dgc upload": case(fed_sdp(placement="client"), {**dgc, "stage": "upload"}),
        "gradient-noise + prune upload": case({**noise, "stage": "batch"}, {**prune, "stage": "upload"}),
    }


def _without() -> dict[str, Document]:
    changes: dict[str, Document] = {
        "poisson": POISSON,
        "with-replacement": {"train.sampling": "with-replacement", "train.batching": "without-replacement"},
        "fedavg size": {"train.aggregation": "fedavg", "train.weights": "size", "data": _digits("quantity", alpha=2.0)},
        "server momentum": {"train.server_momentum": 0.5, "train.server_lr": 0.7, "train.lr_end": 0.05},
        "momentum": {"train.optimizer": "momentum"},
        "adagrad": {"train.optimizer": "adagrad"},
        "late dropout": {"train.late": 0.4, "train.dropout": 0.2, "train.rounds": 4},
        "epochs dirichlet": {
            "train.local_steps": None,
            "train.local_epochs": 1,
            "data": _digits("dirichlet", alpha=2.0),
        },
        "logistic iid": {"model": {"name": "logistic"}, "data": _digits("iid", per_client=20)},
        "cnn": CNN,
        "lenet dropout": {"model": {"name": "lenet-dlg", "channels": 4, "dropout": 0.2}},
    }
    return {"none": case()} | {f"none {name}": case(**change) for name, change in changes.items()}


def _digits(partition: str, **keys: Any) -> Document:
    return {"name": "digits", "clients": 8, "partition": partition, **keys}


TRAINING: dict[str, Document] = (
    _without() | _fed_sdp() | _fed_cdp() | _models_averaged() | _laplace() | _sparse() | _combined()
)

QUICK_TRAINING = (
    "none",
    "fed-sdp server-sum layerwise",
    "fed-sdp client fixed shuffle",
    "fed-cdp example layerwise",
    "fed-cdp batch median flat",
    "2dp-fl distinct",
    "nbafl",
    "dpfl pogz active mean",
    "lip",
    "dssgd random upload laplace",
    "dgc batch + fed-sdp client",
    "gradient-noise laplace example",
)


# --- accounts of federations that are too large to train here ----------------------------------------------------


def _large(defense: Document, **changes: Any) -> Document:
    large = {"train.rounds": 60, "train.per_round": 50, "train.local_steps": 10, "train.batch": 5}
    data = {"name": "mnist", "partition": "shards", "clients": 1000, "per_client": 500, "classes_per_client": 2}
    return case(defense, **{"data": data, **CNN, **large, **changes})


LEDGER_ONLY: dict[str, Document] = {
    "large fed-sdp server-sum": _large(fed_sdp(clip=4.0, noise=6.0)),
    "large fed-sdp client": _large(fed_sdp(clip=4.0, noise=6.0, placement="client")),
    "large fed-sdp fixed": _large(fed_sdp(clip=4.0, noise=1.0), **EXACT),
    "large fed-cdp": _large(fed_cdp(clip=4.0, noise=6.0)),
    "large fed-cdp shuffle": _large(fed_cdp(clip=4.0, noise=6.0), **EXACT),
    "large fed-cdp cohort secure": _large(
        fed_cdp(clip=4.0, noise=6.0, placement="cohort"), **{"train.secure_aggregation": True, "train.local_steps": 1}
    ),
    "large fed-cdp noise_end": _large(fed_cdp(clip=4.0, noise=6.0, noise_end=2.0)),
    "large 2dp-fl": _large(two_dp(clip=1.0, noise=1.0, server_noise=1.0)),
    "large nbafl": _large(nbafl(epsilon=20.0), **EXACT),
    "large dpfl": _large(dpfl(selection="uniform")),
}


# --- attacks -----------------------------------------------------------------------------------------------------


def victims(attack: Document, *defenses: Document, **changes: Any) -> Document:
    """A reconstruction of four victims, one example and one step each."""
    first = {"train.local_steps": 1, "train.batch": 1, **EXACT, **changes}
    return {**case(*defenses, **{"model": LEAKY, **first}), "attack": {"images": 4, "iterations": 12, **attack}}


def inferred(attack: Document, *defenses: Document, **changes: Any) -> Document:
    """An inference attack, with all the keys that it reads: the harness does not add to them."""
    made = case(*defenses, **{"data": _digits("iid", per_client=20), **changes})
    return {**made, "attack": {"seeds": 1, **attack}}


LEAKY = {"name": "lenet-dlg", "channels": 4, "init": "uniform-0.5"}
# L-BFGS that does not converge amplifies rounding: with noise, or several examples, only a few steps of Adam repeat.
SMOOTH = {"name": "cpl", "optimizer": "adam", "lr": 0.1, "iterations": 20}
GLOBAL = {"seat": "passive-global", "tap": "release", "records": 80}

ATTACKS: dict[str, Document] = {
    "cpl": victims({"name": "cpl"}),
    "cpl example": victims({"name": "cpl", "tap": "example", "label": "given"}, **{"train.batch": 2}),
    "cpl batch of two": victims({**SMOOTH, "tap": "batch"}, **{"train.batch": 2}),
    "cpl server two steps": victims({**SMOOTH, "tap": "server", "reading": "simulated"}, **{"train.local_steps": 2}),
    "cpl fed-cdp example": victims({**SMOOTH, "tap": "example"}, fed_cdp(noise=0.01), **{"train.batch": 2}),
    "cpl fed-cdp batch": victims({**SMOOTH, "tap": "batch"}, fed_cdp(noise=0.01, placement="batch")),
    "cpl fed-sdp client": victims(SMOOTH, fed_sdp(noise=0.01, placement="client")),
    "cpl fed-sdp server": victims({**SMOOTH, "tap": "server"}, fed_sdp(noise=0.01, placement="server-each")),
    "cpl prune": victims({"name": "cpl"}, {"name": "prune", "share": 0.2, "stage": "upload"}),
    "cpl round 1": victims({"name": "cpl", "round": 1, "distance": "cosine-layers", "optimizer": "adam"}),
    "dlg": victims({"name": "dlg"}),
    "idlg": victims({"name": "idlg", "restarts": 1}),
    "inverting": victims({"name": "inverting", "iterations": 40}),
    "aono": {**case(**{"train.local_steps": 1, "train.batch": 1}), "attack": {"name": "aono", "images": 4}},
    "inversion": inferred(
        {"name": "inversion", "seat": "passive-global", "tap": "release", "attacker": 0, "victim": 1}
        | {"method": "ascent", "iterations": 50, "lr": 0.1, "tv": 0.0}
    ),
    "inversion closed": inferred(
        {"name": "inversion", "seat": "active", "tap": "server", "victim": 1, "method": "closed"},
        **{"model": {"name": "logistic"}},
    ),
    "loss-threshold": inferred({"name": "loss-threshold", **GLOBAL}),
    "loss-threshold fed-cdp": inferred({"name": "loss-threshold", **GLOBAL}, fed_cdp(placement="batch")),
    "lira": inferred({"name": "lira", "shadows": 6, **GLOBAL}),
    "rmia": inferred({"name": "rmia", "shadows": 4, **GLOBAL}),
    "client-membership": inferred(
        {"name": "client-membership", "seat": "passive-global", "tap": "release"}, **{"data.clients": 20}
    ),
    "client-membership 2dp-fl": inferred(
        {"name": "client-membership", "seat": "passive-global", "tap": "broadcast", "attacker": 0},
        two_dp(noise=0.05, server_noise=0.05),
        **{"data.clients": 20},
    ),
    "melis": inferred(
        {"name": "melis", "seat": "active", "tap": "server", "victim": 1, "trait": "class:3", "records": 60},
        **{"train.rounds": 8, "train.batch": 2},
    ),
    "melis passive": inferred(
        {
            "name": "melis",
            "seat": "passive-local",
            "tap": "broadcast",
            "attacker": 0,
            "trait": "class:3",
            "records": 60,
        },
        **{"train.rounds": 8, "train.batch": 2, "train.local_steps": 1, "train.per_round": 3},
    ),
}

QUICK_ATTACKS = ("aono", "loss-threshold")
