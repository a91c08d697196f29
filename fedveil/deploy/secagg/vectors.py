"""Integer vectors modulo 2^bits: packing for the wire, mask streams, sums.

A vector is an unsigned NumPy array of the smallest type that holds `bits` bits. A mask stream is ChaCha20 under a key of
256 bits; the low bits of each word are uniform modulo 2^bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedveil.deploy.secagg.errors import Abort

MAX_BITS = 64
CHUNK = 1 << 16  # values that are masked or packed at once; a multiple of 8, so that chunks end on whole bytes


def word(bits: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds `bits` bits."""
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits = {bits}, takes 1 to {MAX_BITS}")
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def reduce(values: np.ndarray, bits: int) -> np.ndarray:
    """Integers modulo 2^bits, in the type of `word`. Negative integers are taken in two's complement."""
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"a vector of {values.dtype} instead of integers")
    low = values.astype(np.uint64) & np.uint64((1 << bits) - 1)
    return low.astype(word(bits))


def centred(values: np.ndarray, bits: int) -> np.ndarray:
    """The representatives in [−2^(bits−1), 2^(bits−1)) as int64."""
    wide = values.astype(np.uint64) << np.uint64(64 - bits)
    return wide.view(np.int64) >> np.int64(64 - bits)


def packed_size(length: int, bits: int) -> int:
    """Bytes of a packed vector."""
    return (length * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """The low `bits` bits of each value, one after the other."""
    if bits == 8 * values.dtype.itemsize:
        return values.astype(word(bits)).tobytes()
    parts = []
    for at in range(0, len(values), CHUNK):
        part = np.ascontiguousarray(values[at : at + CHUNK]).astype(word(bits))
        if bits % 8 == 0:
            parts.append(part.view(np.uint8).reshape(len(part), -1)[:, : bits // 8].tobytes())
            continue
        rows = np.unpackbits(part.view(np.uint8).reshape(len(part), -1), axis=1, count=bits, bitorder="little")
        parts.append(np.packbits(rows.reshape(-1), bitorder="little").tobytes())
    return b"".join(parts)


def unpack(data: bytes, length: int, bits: int) -> np.ndarray:
    """The vector in packed bytes; raises `Abort` if they are not exactly one vector of this length."""
    kind = word(bits)
    if len(data) != packed_size(length, bits):
        raise Abort(f"a vector of {len(data)} bytes, expected {packed_size(length, bits)}")
    if length * bits % 8 and data[-1] >> length * bits % 8:
        raise Abort("the vector has bits after its end")
    if bits == 8 * kind.itemsize:
        return np.frombuffer(data, kind).copy()
    found = np.empty(length, kind)
    for at in range(0, length, CHUNK):
        size = min(CHUNK, length - at)
        raw = np.frombuffer(data, np.uint8, packed_size(size, bits), at * bits // 8)
        if bits % 8:
            rows = np.unpackbits(raw, bitorder="little", count=size * bits).reshape(size, bits)
            words = np.packbits(rows, axis=1, bitorder="little")
        else:
            words = raw.reshape(size, bits // 8)
        padded = np.zeros((size, kind.itemsize), np.uint8)
        padded[:, : words.shape[1]] = words
        found[at : at + size] = padded.view(kind)[:, 0]
    return found


def add_stream(total: np.ndarray, key: bytes, bits: int, sign: int) -> None:
    """Adds (`sign` 1) or subtracts (−1) the mask stream of a key, in place; the caller reduces the result at the end."""
    if len(key) != 32:
        raise ValueError("a mask needs a key of 256 bits")
    kind = word(bits)
    if total.dtype != kind:
        raise ValueError(f"a total of {total.dtype}, expected {kind}")
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros = bytes(CHUNK * kind.itemsize)
    operation = np.add if sign > 0 else np.subtract
    for at in range(0, len(total), CHUNK):
        part = total[at : at + CHUNK]
        mask = np.frombuffer(stream.update(zeros[: part.nbytes]), kind)
        operation(part, mask, out=part)


def clear_high_bits(total: np.ndarray, bits: int) -> np.ndarray:
    """The total modulo 2^bits. Wrap-around of the wider word does not change it, because 2^bits divides its range."""
    return total & total.dtype.type((1 << bits) - 1)


def add(vectors: Iterable[np.ndarray], length: int, bits: int) -> np.ndarray:
    """The sum of vectors modulo 2^bits."""
    total = np.zeros(length, word(bits))
    for vector in vectors:
        np.add(total, vector, out=total)
    return clear_high_bits(total, bits)
