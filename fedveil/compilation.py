"""Compilation: the cache of compiled programs on disk, XLA options, and programs that are compiled ahead of time.

The command line calls `use_cache` before JAX is imported, so this module imports JAX on first use only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import stat
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.core.system import Lazy, processor, user_cache

if TYPE_CHECKING:
    import jax
else:
    jax = Lazy("jax")

Options = dict[str, str | bool]

SETTING = "FEDVEIL_COMPILED"
JAX_SETTING = "JAX_COMPILATION_CACHE_DIR"
MAX_BYTES = 512 * 2**20  # when the cache is larger, the oldest programs are deleted
MIN_SECONDS = "0"  # JAX stores programs that took at least this long: small ones are a third of the demo's compile time

# --- the cache on disk


def use_cache() -> Path | None:
    """Tells JAX where to store compiled programs. Returns the folder, or None where nothing is stored.

    `FEDVEIL_COMPILED` names another folder than the user's cache, or is `off`. A user's own `JAX_COMPILATION_CACHE_DIR`
    takes precedence. A stored program is machine code: a folder in which another user could put one is not used.
    """
    asked, own = os.environ.get(SETTING, ""), os.environ.get(JAX_SETTING)
    if own is not None:
        why = distrust(Path(own)) if own else ""
        if why:
            del os.environ[JAX_SETTING]
            _warn(own, why)
        return None
    if asked.lower() in ("off", "0", "no"):
        return None
    folder = Path(asked) if asked else user_cache(f"compiled-{machine()}")
    try:
        if distrust(folder):
            return None
        make_room(folder, MAX_BYTES)
    except OSError:  # the folder cannot be written: every start compiles
        return None
    os.environ[JAX_SETTING] = os.path.realpath(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", MIN_SECONDS)
    return folder


def _warn(named: str, why: str) -> None:
    warnings.warn(f"compiled programs in {named} are not used: {why}; every start compiles", stacklevel=3)


def check_jax_cache() -> None:
    """Stops JAX from using its own cache setting if others can write to that folder. Call it before compiling."""
    settings: Any = jax.config
    named = settings.jax_compilation_cache_dir
    why = distrust(Path(named)) if named else ""
    if why:
        from jax.experimental.compilation_cache import compilation_cache

        settings.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()  # it may be open already
        _warn(named, why)


def distrust(folder: Path) -> str:
    """Why programs in a folder must not be run: who else could have put them there. Empty where nobody could.

    Each folder on the path counts too: a user who can rename one of them can put another in its place. A folder that is not
    there is made.
    """
    if re.match(r"\w+:/", str(folder)):
        return "who can write there is not known"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = Path(os.path.realpath(folder))
        return _writers(real) or _planted(real)
    except OSError as error:
        return f"it cannot be used ({error.strerror or error})"


def _writers(real: Path) -> str:
    """Who else could replace something in a folder or on the way to it."""
    if not hasattr(os, "getuid"):
        return ""
    trusted = (os.getuid(), 0, os.stat("/").st_uid)
    for path in (real, *real.parents):
        found = path.stat()
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = path != real and found.st_mode & stat.S_ISVTX  # there, only the owner of a folder can rename it
        if found.st_uid not in (trusted if path != real else trusted[:1]):
            return f"{path} belongs to another user"
        if others and not sticky:
            return f"others may write to {path}"
    return ""


def _planted(real: Path) -> str:
    """The first thing in a folder that somebody else owns or may write to, or that leads elsewhere."""
    if not hasattr(os, "getuid"):
        return ""
    closed = not real.stat().st_mode & 0o077  # others cannot even enter
    for parent, folders, files in os.walk(real):
        for name in (*folders, *files):
            path = Path(parent) / name
            found = path.lstat()
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                return f"{path} is no plain file"
            if found.st_uid != os.getuid():
                return f"{path} belongs to another user"
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not closed:
                return f"others may write to {path}"
    return ""


def machine() -> str:
    """Ten letters for the processor and the version of JAX: a program made for one may not run on another."""
    said = [platform.machine(), platform.processor()]
    lines = processor().splitlines()
    said += [next((line for line in lines if line.startswith(key)), "") for key in ("model name", "flags", "Features")]
    with contextlib.suppress(metadata.PackageNotFoundError):
        said.append(metadata.version("jaxlib"))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:10]


def make_room(folder: Path, max_bytes: int) -> None:
    """Deletes the oldest files until the folder holds at most `max_bytes`."""
    found = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    size = sum(status.st_size for _, status in found)
    for path, status in sorted(found, key=lambda one: one[1].st_mtime):
        if size <= max_bytes:
            return
        path.unlink(missing_ok=True)
        size -= status.st_size


# --- XLA options


def gpu_options() -> Options:
    """On a GPU, kernels that do not depend on each other run concurrently.

    A layer's update need not wait for the gradients of the layers before it. On an H200 a run under Fed-CDP took 2.01
    instead of 2.21 s with this option, one without a defence 1.80 instead of 1.87 s, an evaluation of 1,000 attacks 5.5
    instead of 5.8 ms.
    """
    return _known("xla_gpu_command_buffer_scheduling_mode", "CONCURRENT") if jax.default_backend() == "gpu" else {}


def cpu_options() -> Options:
    """On a CPU, the widest vectors that it has: Threefry's rounds take 0.6 of the time with them."""
    wide = jax.default_backend() == "cpu" and "avx512f" in processor()
    return _known("xla_cpu_prefer_vector_width", "512") if wide else {}


def training_options() -> Options:
    """The XLA compiler options for the programs of a round."""
    return gpu_options() | cpu_options()


@cache
def _known(name: str, value: str) -> Options:
    """The option, or nothing where this compiler does not know it."""
    options: Options = {name: value}
    try:
        jax.jit(lambda x: x).lower(0.0).compile(compiler_options=options)
    except Exception:  # the type of the error differs from version to version
        return {}
    return options


# --- programs


class Compiler:
    """Compiles functions ahead of time, and adds up the seconds that this takes."""

    def __init__(self, options: Callable[[], Options] | None = None) -> None:
        self.options = options or training_options
        self.seconds = 0.0
        self.lock = threading.Lock()

    def program(self, function: Callable[..., Any], donate: bool = False) -> Program:
        """A compiled function. `donate`: the buffers of its first argument may be reused for its results."""
        return Program(self, jax.jit(function, donate_argnums=0 if donate else ()))


class Program:
    """A jitted function, compiled once for each set of argument shapes."""

    def __init__(self, compiler: Compiler, jitted: Any):
        self.compiler, self.jitted = compiler, jitted
        self._compiled: dict[object, Any] = {}

    def ready(self, *args: Any) -> Any:
        """The executable for these arguments; compiled now if their shapes are new."""
        leaves, structure = jax.tree.flatten(args)
        shapes = (structure, *((a.shape, a.dtype) if hasattr(a, "dtype") else type(a) for a in leaves))
        with self.compiler.lock:
            if shapes not in self._compiled:
                started = time.monotonic()
                self._compiled[shapes] = self.jitted.lower(*args).compile(compiler_options=self.compiler.options())
                self.compiler.seconds += time.monotonic() - started
            return self._compiled[shapes]

    def __call__(self, *args: Any) -> Any:
        return self.ready(*args)(*args)
