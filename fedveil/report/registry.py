"""A run as an entry of OpenDP's registry of deployments of differential privacy: one YAML file.

The registry asks for facts that no run knows: the name of the product, who publishes it, for what use. They come from a
TOML file. Fields and their values are those of the registry's `deployments-schema.yaml` as of September 2026, with `basic`,
`dp_variant`, `privacy_loss`, `deployment_model`, `implementation` and `administrative` below `deployment`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import fedveil
from fedveil.accounting.ledger import Row
from fedveil.core.errors import ConfigError
from fedveil.report.gather import Run
from fedveil.report.glossary import ADJACENCY, UNIT
from fedveil.report.tables import number
from fedveil.report.verdict import verdicts

CURATORS = ("Government", "Industry", "Nonprofit")
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
NEEDED = ("name", "curator", "curator_type", "description", "intended_use", "region", "publication_date", "authors")
OPTIONAL = ("sector", "tap", "unit", "number_of_units")
KEY = "--registry"


def read_facts(path: Path) -> dict[str, Any]:
    """What only the user knows: the TOML file of `--registry`, checked."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            KEY, str(path), f"cannot be read ({why}): takes a TOML file with {', '.join(NEEDED)}"
        ) from None
    return check_facts(facts)


def check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with publication date and authors in the registry's form."""
    for key in (*NEEDED, *facts):
        if key not in facts:
            raise ConfigError(f"{KEY}: {key}", None, f"is needed, as are {', '.join(NEEDED)}")
        if key not in (*NEEDED, *OPTIONAL):
            raise ConfigError(f"{KEY}: {key}", facts[key], f"takes {', '.join((*NEEDED, *OPTIONAL))}")
    found = {**facts, "publication_date": str(facts["publication_date"])}
    for key, known in {"curator_type": CURATORS, "sector": SECTORS}.items():
        if key in found and found[key] not in known:
            raise ConfigError(f"{KEY}: {key}", found[key], f"takes one of: {', '.join(known)}")
    try:
        date.fromisoformat(found["publication_date"])
    except ValueError:
        raise ConfigError(f"{KEY}: publication_date", found["publication_date"], "takes a date, 2026-01-31") from None
    if isinstance(found["authors"], str):
        found["authors"] = [found["authors"]]
    return found


def entry(run: Run, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a run: what the facts say and what the run's account proves."""
    tap, unit = str(facts.get("tap", "release")), str(facts.get("unit", "example"))
    row = run.best(tap, unit)
    if row is None or row.epsilon is None:
        takes = f"nothing is certified for unit '{unit}': an entry states a proved guarantee, so there is none to write"
        raise ConfigError(f"{KEY}: tap", tap, takes)
    basic = {
        "name": facts["name"],
        "data_curators": [{"data_curator_name": facts["curator"], "data_curator_type": facts["curator_type"]}],
        "description": facts["description"],
        "intended_use": facts["intended_use"],
        "data_product_type": "Machine learning model",
        "data_product_region": facts["region"],
        **({"data_product_sector": facts["sector"]} if "sector" in facts else {}),
        "publication_date": facts["publication_date"],
    }
    complete = 3 if "number_of_units" in facts else 2  # the registry's measure of how much an entry tells
    administrative = {"status": "Draft", "registry_authors": list(facts["authors"]), "tier": complete}
    parts = {
        "basic": basic,
        "dp_variant": _variant(run, row),
        "privacy_loss": _loss(run, row, facts),
        "deployment_model": _model(run),
        "implementation": _implementation(run, row),
        "administrative": administrative,
    }
    named = f"{facts['name']} {facts['curator']} {facts['publication_date'][:4]}"  # as the registry builds its slugs
    return {"url_slug": slug(named, "-"), "deployment": parts}


def slug(name: str, joint: str) -> str:
    """Small letters and digits of a name, joined."""
    return joint.join(re.findall(r"[a-z0-9]+", name.lower())) or "deployment"


def _variant(run: Run, row: Row) -> dict[str, Any]:
    open_to_all = ["numbers of clients and of their records"]
    if not any(line.startswith("who takes part is secret") for line in row.assumptions):
        open_to_all.append("who took part in a round")
    if run.scores[2] is not None:
        open_to_all.append("accuracy and loss on held-out records, which the guarantee does not cover")
    return {
        "variant_name": "Approximate DP" if row.delta else "Pure DP",
        "data_domain": "the training records of all clients of the federation",
        "unprotected_quantities": "; ".join(open_to_all),
    }


def _loss(run: Run, row: Row, facts: Mapping[str, Any]) -> dict[str, Any]:
    others = [r for r in run.ledger if (r.tap, r.unit) == (row.tap, row.unit) and r.certified and r.epsilon is not None]
    stated = {r.adjacency: r.epsilon for r in sorted(others, key=lambda r: -(r.epsilon or 0.0))}
    told = "; ".join(f"{number(value, 4)} if {ADJACENCY[name]}" for name, value in stated.items())
    return {
        "privacy_unit": UNIT[row.unit],
        "privacy_unit_details": f"neighbouring data: {UNIT[row.unit]} is {ADJACENCY[row.adjacency]}",
        **({"number_of_privacy_units": int(facts["number_of_units"])} if "number_of_units" in facts else {}),
        "privacy_parameters": {"epsilon": row.epsilon, "delta": row.delta},
        "privacy_parameters_details": f"at the tap '{row.tap}', after {row.rounds} rounds: ε = {told}",
    }


def _model(run: Run) -> dict[str, Any]:
    lines = [f"{one.adversary.name}: {_stated(one.proofs)}" for one in verdicts(run)]
    return {
        "model_name": "Federated",
        "trust_assumptions": "; ".join(lines),
        "release_type": "One release",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _stated(proofs: list[Row]) -> str:
    return (
        ", ".join(f"ε = {number(row.epsilon, 3)} for {UNIT[row.unit]}" for row in proofs) or "trusted, no certificate"
    )


def _implementation(run: Run, row: Row) -> dict[str, Any]:
    accuracy = run.scores[0]
    measured = "not measured" if accuracy is None else f"accuracy {number(accuracy, 4)} on held-out records"
    return {
        "preprocessing_and_hyperparameter_tuning": "not recorded by the run, and not accounted for",
        "mechanisms": f"{run.defense}, Fedveil {fedveil.__version__}: {row.reason}",
        "composition": f"{row.rule} ({row.accountant}) over {row.rounds} rounds",
        "post_processing": "averaging and the following rounds compute on what the mechanism gave out",
        "justification": "holds if: " + "; ".join(row.assumptions),
        "utility": measured,
    }


# --- YAML


def yaml(value: Mapping[str, Any], indent: int = 0) -> str:
    """Nested tables and lists as YAML. Every text is written as in JSON, which YAML reads as it is."""
    lines = []
    for key, one in value.items():
        if isinstance(one, Mapping):
            lines.append(f"{' ' * indent}{key}:\n{yaml(one, indent + 2)}")
        elif isinstance(one, list):
            items = "".join(_item(part, indent + 2) for part in one)
            lines.append(f"{' ' * indent}{key}:\n{items}")
        else:
            lines.append(f"{' ' * indent}{key}: {_scalar(one)}\n")
    return "".join(lines)


def _item(part: Any, indent: int) -> str:
    if not isinstance(part, Mapping):
        return f"{' ' * indent}- {_scalar(part)}\n"
    body = yaml(part, indent + 2)
    return f"{' ' * indent}- {body[indent + 2 :]}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = repr(value)  # all digits: a rounded ε could be below the proved one
        return text if "e" not in text or "." in text else text.replace("e", ".0e")  # YAML takes 1.0e-05 for a number
    return json.dumps(value, ensure_ascii=False)
