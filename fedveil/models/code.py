"""Models from Python code, by name: `module:attribute` or `path/to/file.py:attribute`.

The attribute is a model, or a function without arguments that returns one. Loading it runs the module: give only your own
code. A run records the digest of the source file, so that it is never attacked or resumed with other code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.models.net import Model

KEY = "model.name"


def load_code(name: str) -> Model:
    """The model that `MODULE:NAME` or `FILE.py:NAME` names."""
    found: object = _module(name)
    for part in name.rpartition(":")[2].split("."):
        if not hasattr(found, part):
            raise ConfigError(KEY, name, f"the module has no '{part}'")
        found = getattr(found, part)
    if not isinstance(found, Model) and callable(found):
        found = _called(found, name)
    if isinstance(found, type) or not isinstance(found, Model):
        takes = "names no model: give an object with init(key) and apply(params, x), or a function that returns one"
        raise ConfigError(KEY, name, takes)
    return found


def digest_of(name: str) -> str:
    """The digest of the source file of `MODULE:NAME`."""
    file = inspect.getsourcefile(_module(name))
    if file is None:
        raise ConfigError(KEY, name, "has no source file: give a module of Python code")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _called(make: object, name: str) -> object:
    try:
        return make()  # type: ignore[operator]
    except FedveilError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise ConfigError(KEY, name, f"could not be called ({type(error).__name__}: {error})") from None


def _module(name: str) -> ModuleType:
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigError(KEY, name, "takes MODULE:NAME or FILE.py:NAME")
    try:
        return _of_file(Path(where).expanduser()) if where.endswith(".py") else importlib.import_module(where)
    except FedveilError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise ConfigError(KEY, name, f"cannot be imported ({type(error).__name__}: {error})") from None


def _of_file(path: Path) -> ModuleType:
    """A file as a module, executed once in a process."""
    if not path.is_file():
        raise ConfigError(KEY, str(path), "no such file")
    alias = f"fedveil_model_{hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:12]}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[alias] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module
