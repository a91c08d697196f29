"""Finished programs kept from one start to the next: a second start neither traces nor lowers what it runs.

JAX's own cache (`compiled.py`) spares the compiler's work alone, after a program was traced and lowered again. Here it is
found by a digest of all that decides it: the package's source, versions, processor and device, JAX's settings, the function
with its static parts, the arguments' shapes. A wrong program could train without noise, so what its text may not tell from
something else is never kept: a model or defence of one's own, a closure, an array. Neither is anything once a source file
has changed since the process started, or what JAX took from its own cache: it cannot be written a second time.

The files are pickles. They lie in a folder of the user's own, and one that others could have written is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

from fedveil.compiled import machine, make_room
from fedveil.core.system import cores

MOST = 512 * 2**20  # bytes, and
MOST_FILES = 800  # names, about two for each program; beyond them the programs that were not used for longest go
PACKAGE = Path(__file__).parent
PLAIN = (type(None), bool, int, float, str, bytes)  # what `repr` tells wholly
PLATFORMS = ("cpu",)  # untried on others, where the versions of a card's own libraries would have to be told too
VERSIONS = ("jax", "jaxlib", "numpy", "optax")
VARIABLES = ("XLA_", "TF_", "NVIDIA_", "LIBTPU_", "NPROC")  # of the environment, that compilers and devices read
# What JAX says when it reads a program, and when it has compiled one and writes it.
HIT, MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"

Signature = tuple[tuple[str, int, int], ...]


class Untold(Exception):
    """Something whose text might not tell it from something else."""


@dataclass(frozen=True)
class Store:
    """Where programs are kept, and the package's files as they were when this process started."""

    folder: Path
    sources: Signature


_store: Store | None = None


def use(folder: Path | None) -> None:
    """Keeps programs in this folder from now on; None: keeps none. Called before the package's other files are imported."""
    global _store
    _store = None
    if folder is None or not hasattr(os, "getuid"):
        return
    with contextlib.suppress(OSError):  # a folder that cannot be made: every start compiles
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _own(folder.stat()):
            _store = Store(folder, signature())


class Jitted:
    """A function of the package as `jax.jit` makes it, compiled or found for each set of shapes that it is called with."""

    def __init__(self, function: Callable[..., Any], static: Any, donate: tuple[int, ...] = ()):
        import jax

        self._jitted, self._static = jax.jit(function, donate_argnums=donate), (static, donate)
        self._made: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        import jax

        leaves, tree = jax.tree.flatten(args)
        key = (tree, *((a.shape, a.dtype) for a in leaves))
        with self._lock:
            if key not in self._made:
                self._made[key] = program(self._jitted, args, self._static)
        return self._made[key](*args)


def program(jitted: Any, args: tuple[Any, ...], static: Any, options: Mapping[str, str | bool] | None = None) -> Any:
    """`jitted` compiled for these arguments, or what an earlier start kept of it.

    `static`: all that it is made from. Other parts may come to the same in the end (a learning rate is an argument of a
    round): a program that was traced and lowered is looked for once more, by its text.
    """
    path = _path(told, static, args, options)
    found = _load(path)
    if found is not None:
        return found
    lowered = jitted.lower(*args)
    same = None if path is None else _path(_text, (lowered, path), args, options)
    found = _load(same)
    if found is None:
        with _listening() as fresh:
            found = lowered.compile(compiler_options=options)
        if same is not None and fresh():
            _save(same, found)
    if same is not None and path is not None:
        _link(same, path)
    return found


def _path(
    tell: Callable[[Any], str], what: Any, args: tuple[Any, ...], options: Mapping[str, str | bool] | None
) -> Path | None:
    """The file of a program, by a text of what it is; None where none is kept."""
    if _store is None or signature() != _store.sources:
        return None
    try:
        of_package = _source(_store.sources) if tell is told else ""
        said = (of_package, _surroundings(), _settings(), tell(what), _arguments(args), told(dict(options or {})))
    except Exception:  # what cannot be told, or a JAX that names things otherwise
        return None
    return _store.folder / hashlib.sha256("\n".join(said).encode()).hexdigest()


# --- what decides a program


def told(part: Any) -> str:
    """A static part as a text that no other part has; raises `Untold` where there is none."""
    if type(part) in PLAIN:
        return repr(part)
    if type(part) in (tuple, list):
        return f"{type(part).__name__}({', '.join(map(told, part))})"
    if type(part) is frozenset:
        return f"frozenset({', '.join(sorted(map(told, part)))})"
    if type(part) is dict:
        return f"dict({', '.join(f'{told(key)}: {told(value)}' for key, value in part.items())})"
    if type(part) is partial:
        return f"partial({told(part.func)}, {told(part.args)}, {told(part.keywords)})"
    if isinstance(part, FunctionType | type):
        return _named(part)
    settings = getattr(part, "__dataclass_params__", None)
    if settings is not None and settings.frozen:
        names = [field.name for field in fields(part)]
        if set(vars(part)) != set(names):  # something in its hands that is no field: what a defence has measured
            raise Untold(part)
        return f"{_named(type(part))}({', '.join(f'{name}={told(getattr(part, name))}' for name in names)})"
    raise Untold(part)


def _text(what: tuple[Any, Path]) -> str:
    """What the compiler is given, which of the arguments it takes, and how its results are put together."""
    import jax

    lowered, path = what
    text = lowered.as_text()
    if "callback" in text:  # a way back into this process
        raise Untold(lowered)
    inside = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    taken = sorted(inside["kept_var_idx"]) if "kept_var_idx" in inside else path.name  # else: this one's text alone
    given = [(str(a), a.donated) for a in jax.tree.leaves(lowered.args_info)]
    return f"{text}\n{taken} {given} {lowered.out_tree}"


def _named(thing: FunctionType | type) -> str:
    """Where a function or class of this package stands; one from elsewhere, or made while running, has no source here."""
    found: Any = sys.modules.get(thing.__module__)
    inside = PACKAGE in Path(getattr(found, "__file__", None) or "/").parents
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not thing or not inside:
        raise Untold(thing)
    return f"{thing.__module__}.{thing.__qualname__}"


def _arguments(args: tuple[Any, ...]) -> str:
    """Structure, shapes and types of arguments; all that are on a device must be on the one that programs run on."""
    import jax

    leaves, tree = jax.tree.flatten(args)
    if " at 0x" in str(tree):
        raise Untold(tree)
    if any(isinstance(a, jax.Array) and a.devices() != {jax.devices()[0]} for a in leaves):
        raise Untold(args)
    kinds = [jax.typeof(a) for a in leaves]
    return f"{tree} {[(kind.shape, str(kind.dtype), kind.weak_type) for kind in kinds]}"


def _settings() -> str:
    """JAX's settings as they are in this thread, but for where and when it keeps programs itself."""
    import jax

    settings: Any = jax.config
    if settings.jax_default_device is not None or jax.process_count() > 1:
        raise Untold(settings)
    names = [name for name in sorted(settings.values) if "compilation_cache" not in name and "persistent" not in name]
    return repr([(name, getattr(settings, name, None)) for name in names])


@cache
def _source(sources: Signature) -> str:
    """A digest of the package's files: what is in them, and when they changed, by which Python finds what it imports."""
    package = hashlib.sha256(repr(sources).encode())
    for path, _, _ in sources:
        package.update(Path(path).read_bytes())
    return package.hexdigest()


@cache
def _surroundings() -> str:
    """What else does not change while a process runs: versions, processor, device, variables."""
    import jax

    first = jax.devices()[0]
    if first.platform not in PLATFORMS:
        raise Untold(first)
    versions = [metadata.version(name) for name in VERSIONS]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES))
    device = (first.platform, first.device_kind, first.client.platform_version, len(jax.devices()))
    return repr((sys.version, versions, machine(), os.cpu_count(), cores(), device, variables))


def signature() -> Signature:
    """The package's source files with their sizes and times of change: a millisecond or two."""
    found, folders = [], [str(PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    now = entry.stat()
                    found.append((entry.path, now.st_size, now.st_mtime_ns))
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return tuple(sorted(found))


# --- files


def _load(path: Path | None) -> Any:
    """The program in a file; None where there is none, or it is broken, or not the user's own."""
    if path is None:
        return None
    import jax
    from jax.experimental import serialize_executable

    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            kept = file.read() if _own(os.fstat(file.fileno())) else b""
        if hashlib.sha256(kept[32:]).digest() != kept[:32]:
            return None
        program, taken, given = pickle.loads(kept[32:])  # with the trees of arguments and results
        load: Callable[..., Any] = serialize_executable.deserialize_and_load
        made = load(program, taken, given, execution_devices=jax.devices()[:1])
        with contextlib.suppress(OSError):
            os.utime(path)  # for whoever makes room
        return made
    except Exception:
        return None


def _save(path: Path, made: Any) -> None:
    """Writes a program beside its file and moves it there; a device that cannot write programs keeps none."""
    from jax.experimental import serialize_executable

    with contextlib.suppress(Exception):
        kept = pickle.dumps(serialize_executable.serialize(made))
        descriptor, beside = tempfile.mkstemp(dir=path.parent)  # which nobody else may read
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(kept).digest() + kept)
            os.replace(beside, path)
        finally:
            Path(beside).unlink(missing_ok=True)
        make_room(path.parent, MOST, MOST_FILES)


def _link(file: Path, path: Path) -> None:
    """The same file under one more name, in place of what has it now."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):  # none to link, or a disk without links
        os.link(file, beside)
        os.replace(beside, path)
        beside.unlink(missing_ok=True)  # it stays where both names were one file


def _own(found: os.stat_result) -> bool:
    """Whether something is the user's, and nobody else may write it."""
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


# --- whether the compiler has made a program


class _Heard(threading.local):
    """What JAX has said of its own cache in this thread: how many programs it found there, and how many not."""

    hits = 0
    misses = 0


_heard = _Heard()


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether the compiler made what was compiled inside.

    What JAX has read from its own cache cannot be written again: it loses parts (jaxlib 0.10).
    """
    import jax

    _listen()
    cached = bool(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
    hits, misses = _heard.hits, _heard.misses
    yield lambda: not cached or (_heard.hits == hits and _heard.misses == misses + 1)


@cache
def _listen() -> None:
    from jax import monitoring

    def hear(event: str, **_: Any) -> None:
        _heard.hits += event == HIT
        _heard.misses += event == MISS

    monitoring.register_event_listener(hear)
