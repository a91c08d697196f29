"""The digest that a measured cell is found by: a hash of everything its result depends on. Cheap to import: no JAX.

The digest is made from the resolved config: all sections that the job reads, every key with the value that is used, whether
it was set or is a default. So a default that changes gives every cell that relied on it another digest, and the cell is
measured again; a cell that sets the key keeps its own. Rules for keys:

- A key without a value (None) is left out. So a new key that is unset by default changes no digest.
- A new key that has a value by default would change all digests. It is left out where it has its value in `NEUTRAL`: the
  value with which results are what they were before the key existed. Who adds such a key adds its line there; a test that
  finds all measured cells fails until then. A neutral value is not a default: if the default moves, digests change.
- Numbers that are equal are written alike: 4 and 4.0.

Beside the config, the digest holds the job's kind and options, the package's version and the version of the kind, which is
raised when code changes what the kind measures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from fedveil.attacks.catalog import inference_settings, settings
from fedveil.config import AttackConfig, Config, for_attack, load, resolve
from fedveil.data.catalog import DATASETS
from fedveil.defenses.catalog import resolved

Document = dict[str, Any]

RECONSTRUCTIONS = ("attack", "attack-steps", "attack-layers", "compare-attacks")  # kinds that read [attack]
INFERENCES = ("infer",)  # likewise

# section.key, or name-of-defence.key: the value with which results are what they were before the key existed.
NEUTRAL: dict[str, Any] = {}


def digest(kind: str, given: tuple[str, ...], options: Mapping[str, Any], versions: list[Any]) -> str:
    """The digest of the job of this kind with these settings and options."""
    rest = json.dumps([kind, _plain(dict(options)), versions], sort_keys=True)
    return hashlib.sha256((_text(kind, given) + rest).encode()).hexdigest()[:24]


@lru_cache(maxsize=1 << 14)
def _text(kind: str, given: tuple[str, ...]) -> str:
    """The document as text; a page of tables asks for it several times."""
    return json.dumps(document(kind, given), sort_keys=True)


def document(kind: str, given: tuple[str, ...]) -> Document:
    """The resolved config of a job as plain data: the sections that this kind of job reads."""
    config = load(None, list(given))
    if kind in RECONSTRUCTIONS:
        config = for_attack(config)
    config = resolve(config, trainable=False)
    made: Document = {
        name: getattr(config, name).model_dump(mode="json") for name in ("data", "model", "train", "speed")
    }
    if kind in RECONSTRUCTIONS:
        made["attack"] = _reconstruction(config)
    elif kind in INFERENCES:
        made["attack"] = _inference(config.attack)
    kept = {name: _used(name, section) for name, section in made.items()}
    return _plain({**kept, "defense": [_used(one["name"], one) for one in map(resolved, config.defense)]})


def _reconstruction(config: Config) -> Document:
    asked = config.attack
    rule = asked.rule or ("ssim" if DATASETS[config.data.name].kind == "image" else "mse")
    bench = {"tap": asked.at, "images": asked.images, "seeds": asked.seeds, "round": asked.round or 0, "rule": rule}
    return {**bench, **asdict(settings(asked.name, **asked.given()))}


def _inference(asked: AttackConfig) -> Document:
    made = inference_settings(asked.name, **asked.given())
    return {"seeds": asked.seeds, "round": asked.round, **asdict(made), "tap": made.stands_at}


def _used(name: str, section: Mapping[str, Any]) -> Document:
    """The keys of a section that may change a result: those with a value, but for neutral ones."""
    found = {key: value for key, value in section.items() if value is not None}
    return {key: value for key, value in found.items() if NEUTRAL.get(f"{name}.{key}") != value}


def _plain(value: Any) -> Any:
    """Plain data in which equal numbers are written alike."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
