"""Long-term keys: each node has one Ed25519 key pair and pins the public keys of all others in a roster.

The roster does not come from the server: `deploy init` writes it, or the owners exchange it as a file. Two nodes with
different rosters do not accept each other's messages, because its fingerprint is part of every session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.deploy.secagg.codec import MAX_NODES
from fedveil.deploy.secagg.errors import Abort


@dataclass(frozen=True)
class Roster:
    """The public keys of a federation's nodes, 32 bytes each, by client number."""

    keys: Mapping[int, bytes]
    _loaded: dict[int, Ed25519PublicKey] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.keys or not all(0 <= client < MAX_NODES for client in self.keys):
            raise ValueError(f"a roster needs client numbers from 0 to {MAX_NODES - 1}")
        if len(set(self.keys.values())) != len(self.keys):
            raise ValueError("two clients of the roster have the same key")
        for client, key in self.keys.items():
            self._loaded[client] = Ed25519PublicKey.from_public_bytes(key)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of all numbers and keys, in order."""
        lines = (client.to_bytes(4, "big") + self.keys[client] for client in sorted(self.keys))
        return hashlib.sha256(b"fedveil secagg roster 1\0" + b"".join(lines)).digest()

    def verify(self, client: int, signature: bytes, message: bytes, what: str) -> None:
        """Raises `Abort` unless the signature is this client's."""
        if client not in self._loaded:
            raise Abort(f"{what}: client {client} is not in the roster")
        try:
            self._loaded[client].verify(signature, message)
        except InvalidSignature:
            raise Abort(f"{what}: the signature is not that of client {client} in the roster") from None


def new_key() -> Ed25519PrivateKey:
    """A long-term key."""
    return Ed25519PrivateKey.generate()


def public(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of a key's public half."""
    return key.public_key().public_bytes_raw()
