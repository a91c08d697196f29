"""The messages of a hostile server and of hostile nodes, by kind. The tests send them; docs/security.md counts them."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).with_name("attacked.json")  # kind → how many were tried and survived, as docs/security.md shows
Payload = dict[str, bytes]


@dataclass(frozen=True)
class Attack:
    """A hostile server's message: changes to an honest request. `accepted` ones must cost ε and reveal nothing more."""

    kind: str
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)  # section.key → value
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the request
    payload: Payload | None = None
    accepted: bool = False
    only: Mapping[str, Any] | None = None  # the whole message instead: {"kind": …, "fields": …}


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def npy_that_claims(shape: tuple[int, ...], dtype: str = "<f4", body: bytes = b"") -> bytes:
    """A file whose header states a shape that its body does not have."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


# --- a hostile server: less noise


def less_noise() -> Iterator[Attack]:
    kind = "less noise than the owner allows"
    one: list[dict[str, Any]] = [{"noise": z} for z in (0.0, 1e-300, 1e-9, 0.001, 0.5, 1.0, 3.0, 3.99, 3.9999)]
    one += [{"noise_end": z, "schedule": "linear"} for z in (1e-9, 0.001, 1.0, 3.9)]
    one += [{"clip": c} for c in (1e-300, 1e-30, 1e-9, 0.001, 0.5, 0.999, 1.001, 2.0, 10.0, 1e9, 1e300)]
    one += [{"clip_end": c} for c in (1e-9, 0.5, 2.0, 1e9)]
    one += [{"placement": "cohort"}, {"placement": "cohort", "noise": 1e6}]
    for changes in one:
        yield Attack(
            kind, f"fed-cdp {changes}", {"defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 4.0, **changes}]}
        )
    others: list[list[dict[str, Any]]] = [
        [{"name": "none"}], [{"name": "prune"}], [{"name": "dgc"}], [{"name": "dssgd"}], [{"name": "squeeze"}],
        [{"name": "lip"}], [{"name": "fed-sdp"}], [{"name": "fed-sdp", "placement": "server-each"}], [{"name": "nbafl"}],
        [{"name": "fed-sdp", "placement": "client", "noise": 1e-6}], [{"name": "2dp-fl"}], [{"name": "dpfl"}],
        [{"name": "gradient-noise", "scale": 1e-9}], [{"name": "fed-cdp"}, {"name": "prune"}], [{"name": "nonsense"}],
        [{"name": "fed-cdp"}, {"name": "dgc"}], [{"name": "lip"}, {"name": "fed-cdp"}], [],
    ]  # fmt: skip
    for defense in others:
        yield Attack(kind, "+".join(d["name"] for d in defense) or "no defence", {"defense": defense})
    for name, change in (
        ("a known seed of the noise", {"train.noise_seed": 7}),
        ("an update in the clear under secure aggregation", {"train.secure_aggregation": True}),
        ("cohort noise with secure aggregation", {"train.secure_aggregation": True,
         "defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 4.0, "placement": "cohort"}]}),
    ):  # fmt: skip
        yield Attack(kind, name, change)
    for seed in (0, 1, 2**31, 2**62):
        yield Attack(kind, f"test mode with seed {seed}", fields={"seed": seed})


def other_data() -> Iterator[Attack]:
    kind = "other data and files"
    for name, change in (
        ("features", {"data.features": "scatter"}),
        ("a dataset that does not exist", {"data.name": "../../etc"}),
        ("a defence that is a path", {"defense": [{"name": "../node"}]}),
        ("a model that is a path", {"model.name": "/etc/passwd"}),
        ("an optimiser that is code", {"train.optimizer": "__import__('os').system('id')"}),
        ("a partition that is code", {"data.partition": "lambda: 0"}),
        ("an unknown section", {"shell.command": "id"}),
        ("an unknown key", {"data.command": "id"}),
        ("a split that does not exist", {"data.split": "everything"}),
        ("lists instead of numbers", {"train.batch": [1, 2]}),
    ):
        yield Attack(kind, name, change)
    # The node reads its own file only: these change nothing, and cost what every round costs.
    for name, change in (
        ("a file of the machine", {"data.name": "file", "data.file": "/etc/passwd"}),
        ("the node's key", {"data.name": "file", "data.file": "key"}), ("another folder", {"data.dir": "/etc"}),
        ("another seed", {"train.seed": 99}),
        ("another size", {"data.per_client": 1}), ("another evaluation", {"train.eval_every": 1}),
    ):  # fmt: skip
        yield Attack(kind, name, change, accepted=True)


# --- a hostile server: cost


def huge() -> Iterator[Attack]:
    kind = "huge numbers"
    changes: list[dict[str, Any]] = [
        *({"train.local_steps": n} for n in (3, 100, 10**5, 10**6, 10**9, 2**63)),
        *({"train.rounds": n} for n in (5, 1000, 10**7, 10**12, 2**63)),
        *({"train.local_steps": None, "train.local_epochs": n} for n in (1, 10**5, 10**9)),
        *({"train.batch": n} for n in (61, 10**5, 10**9, 2**40, 2**63)),
        *({"data.clients": n} for n in (10**8, 2**63, -1, 0)),
        *({"train.per_round": n} for n in (0, -1, 2**63)),
        *({"model.name": "mlp", "model.hidden": [n]} for n in (10**4, 10**6, 10**9, 2**40, 2**62)),
        {"model.name": "mlp", "model.hidden": [10**5] * 4}, {"model.name": "mlp", "model.hidden": [8] * 5000},
        {"model.name": "mlp", "model.hidden": []}, {"model.name": "mlp", "model.hidden": [-1]},
        *({"train.lr": n} for n in (0.0, -1.0, 1e7, 1e308)), {"train.server_lr": 1e308},
        {"train.seed": 2**64}, {"train.eval_every": 0}, {"speed.chunk": -1}, {"speed.precision": "float1024"},
    ]  # fmt: skip
    for change in changes:
        yield Attack(kind, str(change)[:60], change)
    for name, value in (
        *(("round", n) for n in (4, -1, 10**7, 2**63, -(2**63))), *(("smallest", n) for n in (0, -1, 61, 2**31, 2**63)),
        *(("max_weight", w) for w in (math.inf, math.nan, -1.0, 0.0, 1e300)),
        *(("min_weight", w) for w in (math.inf, math.nan, -1.0, 0.0, 2.0, 1e300)),
        *(("client", n) for n in (1, -1, 2**63)), *(("key", k) for k in ("", "0" * 32, "k" * 10**6)),
    ):  # fmt: skip
        yield Attack(kind, f"{name} = {str(value)[:20]}", fields={name: value})
    for name, text in (
        ("a config of 10 MB", "#" * 10**7), ("10,000 nested lists", "a = " + "[" * 10_000),
        ("10,000 nested tables", "a." * 10_000 + "b = 1"), ("no TOML", "\x00\x01"), ("an empty config", ""),
        ("a number of 5,000 digits", "[train]\nrounds = " + "9" * 5000), ("keys given twice", "[train]\n[train]\n"),
        ("5,000 defences", '[[defense]]\nname = "fed-cdp"\n' * 2000),
    ):  # fmt: skip
        yield Attack(kind, name, fields={"config": text})


def shapes(like: Payload) -> Iterator[Attack]:
    kind = "models of another shape"
    arrays = {name: np.load(io.BytesIO(data)) for name, data in like.items()}
    first = next(iter(arrays))
    base = arrays[first]
    other: dict[str, bytes] = {
        "transposed": npy(base.T.copy() if base.ndim > 1 else base[None]), "one entry more": npy(np.append(base, 0)),
        "float64": npy(base.astype(np.float64)), "float16": npy(base.astype(np.float16)),
        "int32": npy(base.astype(np.int32)), "complex": npy(base.astype(np.complex64)),
        "bool": npy(base.astype(bool)), "text": npy(base.astype("U8")), "NaN": npy(np.full_like(base, np.nan)),
        "infinity": npy(np.full_like(base, np.inf)),
        "one NaN": npy(np.where(np.arange(base.size).reshape(base.shape), base, np.nan)),
        "pickled objects": npy(np.array([{"a": 1}] * base.size, object)), "empty": b"", "no array": b"nonsense" * 10,
        "cut": npy(base)[:-3], "too long": npy(base) + b"x" * 5000, "a zip archive": _archive(base),
        "an archive that unpacks to gigabytes": _bomb(), "a header of 60 KB": npy_that_claims((1,) * 20_000),
        "fortran order": npy(np.asfortranarray(np.zeros((3, *base.shape), base.dtype))),
        **{f"claims {shape}": npy_that_claims(shape) for shape in ((10**12,), (2**62, 2), (-1,), (2**31, 2**31), ())},
        "claims objects": npy_that_claims(base.shape, "|O"), "claims text of 2 GB": npy_that_claims((1,), "<U536870911"),
        "a header that is code": npy_that_claims(base.shape).replace(b"False", b"id()  "),
    }  # fmt: skip
    for name, data in other.items():
        yield Attack(kind, name, payload={**like, first: data})
    yield Attack(kind, "a layer is missing", payload={n: d for n, d in like.items() if n != first})
    yield Attack(kind, "a layer too many", payload={**like, "more": like[first]})
    yield Attack(kind, "no layer", payload={})
    yield Attack(kind, "other names", payload={f"../{n}": d for n, d in like.items()})
    yield Attack(kind, "2,000 layers", payload={f"l{i}": b"" for i in range(2000)})


def _archive(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, a=array)
    return file.getvalue()


def _bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy_that_claims((2**26,), body=bytes(2**22)))
    return file.getvalue()


def extreme(like: Payload) -> Iterator[Attack]:
    """Parameters that a server may choose. The round is in the ledger, and the reply stays within clip and noise."""
    kind = "chosen extreme parameters"
    arrays = {name: np.load(io.BytesIO(data)) for name, data in like.items()}
    rng = np.random.default_rng(0)
    biggest = float(np.finfo(np.float32).max)
    for value in (0.0, 1e-45, -1e-45, 1.0, 1e3, 1e10, -1e10, 1e19, 1e30, -1e30, 1e38, -1e38, biggest, -biggest):
        made = {name: npy(np.full_like(a, value)) for name, a in arrays.items()}
        yield Attack(kind, f"all {value:g}", payload=made, accepted=True)
    for scale in (1e5, 1e20, 1e30, 3e38):
        made = {
            name: npy(np.sign(rng.normal(size=a.shape)).astype(a.dtype) * np.float32(scale))
            for name, a in arrays.items()
        }
        yield Attack(kind, f"±{scale:g} at random", payload=made, accepted=True)
    for pixel in range(6):  # a model that overflows for records in which this pixel is set
        made = {name: np.zeros_like(a) for name, a in arrays.items()}
        for a in made.values():
            a[(8 + pixel) % len(a)] = biggest
        yield Attack(
            kind, f"overflow where pixel {pixel} is set", payload={n: npy(a) for n, a in made.items()}, accepted=True
        )


def malformed(honest: Mapping[str, Any]) -> Iterator[Attack]:
    kind = "malformed messages"
    for wanted in (
        "",
        "train.more",
        "query",
        "reconnect",
        "evaluate",
        "system",
        "shell",
        "TRAIN",
        "x" * 10**5,
        "\n\x1b[2J",
    ):
        yield Attack(kind, f"kind {wanted[:10]!r}", only={"kind": wanted, "fields": honest})
    for name, value in (
        ("round", "0"), ("round", 0.0), ("round", None), ("round", True), ("client", [0]), ("client", "0; id"),
        ("smallest", True), ("config", 5), ("config", {"a": 1}), ("run", 7), ("seed", "x"), ("seed", None),
        ("max_weight", 1), ("max_weight", "1"), ("key", 5), ("__class__", "x"), ("home", "/etc"), ("epsilon", 0.0),
        ("limits", {}), ("test", True),
    ):  # fmt: skip
        yield Attack(kind, f"{name} = {value!r}", only={"kind": "train", "fields": {**honest, name: value}})
    for name in honest:
        yield Attack(
            kind, f"without {name}", only={"kind": "train", "fields": {n: v for n, v in honest.items() if n != name}}
        )
    yield Attack(kind, "no fields", only={"kind": "train", "fields": {}})


def garbage() -> dict[str, bytes]:
    """Bytes that are no message, for the worker's socket."""
    head = struct.Struct("!I")

    def framed(header: bytes) -> bytes:
        return head.pack(len(header)) + header

    def parts(*sizes: list[Any]) -> bytes:
        return framed(json.dumps({"kind": "train", "fields": {}, "parts": sizes}).encode())

    return {
        "nothing but zeros": bytes(64), "random bytes": np.random.default_rng(0).bytes(1000),
        "a header of 4 GB": head.pack(2**32 - 1), "no JSON": framed(b"x" * 50), "a list": framed(b"[1, 2]"),
        "parts of a negative size": parts(["a", -5]), "parts of 10 EB": parts(["a", 10**19]),
        "parts that never come": parts(["a", 100]), "10,000 parts": parts(*([str(i), 0] for i in range(10_000))),
        "nested 100,000 times": framed(b"[" * 100_000), "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a pickle": framed(b"\x80\x04cos\nsystem\n(S'id'\ntR."),
    }  # fmt: skip


# --- what the page shows


def tally(kind: str, tried: int, survived: int) -> None:
    """Compares a result with the recorded one, or records it: `FEDVEIL_RECORD=1 pytest tests/deploy`."""
    import os

    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if os.environ.get("FEDVEIL_RECORD") == "1":
        RECORD.write_text(json.dumps({**found, kind: [tried, survived]}, indent=1, sort_keys=True) + "\n")
        return
    assert found.get(kind) == [tried, survived], (
        f"{kind}: {tried} tried, {survived} survived; the page says {found.get(kind)}"
    )
