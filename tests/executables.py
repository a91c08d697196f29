"""Programs that XLA has compiled in this process, for tests: an equal program is not compiled a second time.

Tests build small federations again and again. JAX traces each of them anew, and often the program that comes out is one
that an earlier test had. The key is all that XLA gets: the program without its source positions, the options and the
devices. So a test runs what it would have compiled. Programs that call back into Python are left alone.

This replaces a function inside JAX. With a version of JAX that has no such function, every program is compiled.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

MOST = 400  # programs that are kept, the latest ones


def share() -> None:
    """Shares executables between the tests of this process."""
    try:
        from jax._src import cache_key, compiler

        compile_program, text_of = compiler.backend_compile_and_load, cache_key._canonicalize_ir
        every = cache_key.IgnoreCallbacks.NO
    except (ImportError, AttributeError):
        return
    kept: OrderedDict[bytes, Any] = OrderedDict()

    def compiled(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        text = text_of(module, every)
        if callbacks or b"callback" in text:
            return compile_program(backend, module, devices, options, callbacks)
        key = hashlib.sha256(b"\0".join((text, options.SerializeAsString(), str(devices).encode()))).digest()
        if key not in kept:
            kept[key] = compile_program(backend, module, devices, options, callbacks)
            if len(kept) > MOST:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    compiler.backend_compile_and_load = compiled
