"""The base of every config section, and pydantic's errors as one line: key, value, what it takes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from fedveil.core.errors import ConfigError

_LIMITS = {
    "greater_than": "takes more than {gt}",
    "greater_than_equal": "takes {ge} or more",
    "less_than": "takes less than {lt}",
    "less_than_equal": "takes {le} or less",
    "literal_error": "takes {expected}",
    "missing": "is required",
}
_TYPES = {
    "int_type": "takes a whole number",
    "int_from_float": "takes a whole number",
    "float_type": "takes a number",
    "string_type": "takes a name in quotes",
    "bool_type": "takes true or false",
    "list_type": "takes a list",
    "tuple_type": "takes a list",
    "too_short": "takes at least one",
    "too_long": "takes at most eight",
    "model_type": "takes a table of keys",
    "dict_type": "takes a table of keys",
    "finite_number": "takes a finite number",
}


class Section(BaseModel):
    """A section of the config. Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def one_line(error: ValidationError, prefix: str = "") -> ConfigError:
    """The first error as a `ConfigError`. Path components that only name a branch of a union are left out."""
    first = error.errors()[0]
    parts = [str(p) for p in first["loc"] if not str(p).startswith(("function", "int", "literal", "constrained"))]
    key = ".".join([prefix, *parts] if prefix else parts)
    kind = first["type"]
    if kind in _LIMITS:
        return ConfigError(key, first["input"], _LIMITS[kind].format(**first.get("ctx", {})))
    return ConfigError(key, first["input"], _TYPES.get(kind, first["msg"].lower()))
