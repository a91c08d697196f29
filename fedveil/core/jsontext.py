"""Strict JSON: numbers that are not finite become null, paths become text."""

from __future__ import annotations

import json
import math
from pathlib import Path


def to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | int | float):
        value = value.item()  # a numpy number
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
