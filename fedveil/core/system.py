"""Small services that every layer uses: modules and results, JSON text, the machine's cores, the cache folder.

Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from fedveil.core.errors import ConfigError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


class Lazy:
    """Imports a module when one of its names is first used, so that tables, ledgers and `--help` do not wait for JAX."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


class CallableModule(ModuleType):
    """A module that can be called like its function of the same name.

    `fedveil.audit(...)` and `import fedveil.audit.run` both work, in any order.

    Importing a submodule sets it as an attribute of its package, where it hides a function of the same name.
    """

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **keywords)


def make_callable(module: str) -> None:
    """Lets a module be called like its function of the same name."""
    sys.modules[module].__class__ = CallableModule


class Documented(Protocol):
    """A result that can be written as a JSON document."""

    def as_dict(self) -> dict[str, object]: ...


Item = TypeVar("Item", bound=Documented)


class Rows(tuple[Item, ...], Generic[Item]):
    """The rows of a result; `as_dict()` is its JSON document, a list."""

    def as_dict(self) -> list[dict[str, object]]:
        return [row.as_dict() for row in self]


def to_json(value: object, indent: int | None = None) -> str:
    """Strict JSON: numbers that are not finite become null, paths become text."""
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


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """The system's description of its processors; empty where it has none."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_memory() -> int:
    """Bytes that this process may still use: what the system has free, within the limits on the process."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [2**40]
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        free.append(limit - _pages("/proc/self/statm"))
    for path, key in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            words = Path(path).read_text(encoding="ascii").split()
            free.append(1024 * int(words[words.index(key) + 1]) if key else int(words[0]) - _used())
        except (OSError, ValueError):  # another system, or no limit
            continue
    return max(0, min(free))


def _pages(path: str) -> int:
    """The address space that is in use, in bytes."""
    try:
        return int(Path(path).read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _used() -> int:
    """Bytes that count towards the limit of the control group, without files that were read and can be dropped."""
    group = Path("/sys/fs/cgroup")
    words = (group / "memory.stat").read_text(encoding="ascii").split()
    droppable = int(words[words.index("inactive_file") + 1])
    return int((group / "memory.current").read_text(encoding="ascii")) - droppable


def check_memory(key: str, value: object, need: float, instead: str) -> None:
    """Refuses a setting that needs more memory than is free, before the work begins."""
    free = free_memory()
    if need > free:
        takes = f"needs about {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: {instead}"
        raise ConfigError(key, value, takes)


def user_cache(part: str) -> Path:
    """`$XDG_CACHE_HOME/fedveil/PART`, by default below `~/.cache`: for what can be made or fetched again.

    The folder is not created here.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedveil" / part
