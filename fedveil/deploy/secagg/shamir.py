"""Shamir's secret sharing of 256-bit secrets: `threshold` shares give the secret, fewer give nothing.

The field has p = 2²⁵⁶ − 189 elements, the largest prime below 2²⁵⁶. A secret is a uniform element as 32 bytes. The share of
holder x is the value at x + 1 of a random polynomial of degree threshold − 1 whose value at 0 is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

from fedveil.deploy.secagg.errors import Abort

PRIME = (1 << 256) - 189
SIZE = 32  # bytes of a secret and of a share


def new_secret() -> bytes:
    """A uniform element of the field, from the operating system's entropy."""
    return secrets.randbelow(PRIME).to_bytes(SIZE, "big")


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder."""
    holders = sorted(set(holders))
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"a threshold of {threshold} with {len(holders)} holders")
    coefficients = [_element(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _at(coefficients, holder + 1).to_bytes(SIZE, "big") for holder in holders}


def _at(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of the `threshold` lowest holders. Wrong shares give a wrong secret."""
    if len(shares) < threshold:
        raise Abort(f"{len(shares)} shares, {threshold} are needed")
    used = sorted(shares)[:threshold]
    weights = _weights(tuple(used))
    total = sum(weight * _element(shares[holder]) for holder, weight in zip(used, weights, strict=True))
    return (total % PRIME).to_bytes(SIZE, "big")


@lru_cache(maxsize=8)
def _weights(holders: tuple[int, ...]) -> list[int]:
    """Lagrange's weights at 0 for the points holder + 1."""
    points, found = [holder + 1 for holder in holders], []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def checked(share: bytes) -> bytes:
    """The share, if it is an element of the field."""
    _element(share)
    return share


def _element(data: bytes) -> int:
    value = int.from_bytes(data, "big")
    if len(data) != SIZE or value >= PRIME:
        raise Abort("a share or secret is not an element of the field")
    return value
