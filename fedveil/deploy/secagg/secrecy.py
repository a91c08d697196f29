"""The secrets of one node in one session, and the keys that follow from them. All live in memory only.

Two key pairs: `mask_key` gives the pairwise masks and may be opened if the node is lost; `channel_key` encrypts shares and
is never opened. Both are X25519; every key that is used is 256 bits out of HKDF-SHA256.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.deploy.secagg import shamir
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.terms import digest

NONCE = bytes(12)  # each channel key encrypts one message
DIGEST = 16  # bytes of the digest of a share: another share with the same digest takes 2¹²⁸ tries


@dataclass(frozen=True)
class Secrets:
    """What a node draws for a session."""

    seed: bytes  # of the node's own mask
    mask_secret: bytes  # opens the pairwise masks
    channel: X25519PrivateKey

    @classmethod
    def new(cls) -> Secrets:
        return cls(shamir.new_secret(), shamir.new_secret(), X25519PrivateKey.generate())

    @property
    def mask_public(self) -> bytes:
        return mask_public(self.mask_secret)

    @property
    def channel_public(self) -> bytes:
        return self.channel.public_key().public_bytes_raw()


def mask_public(secret: bytes) -> bytes:
    """The public key that belongs to the secret key of a node's masks."""
    return mask_private(secret).public_key().public_bytes_raw()


def commitment(context: bytes, client: int, seed: bytes) -> bytes:
    """A digest by which an opened seed is recognised. It hides the seed, which has 256 bits."""
    return digest(b"seed", context, client.to_bytes(4, "big"), seed)


def share_digests(context: bytes, owner: int, holder: int, shares: tuple[bytes, bytes]) -> bytes:
    """Digests of a holder's shares of seed and mask secret, by which wrong ones are recognised when they are opened.

    A share has 256 uniform bits, so a digest hides it.
    """
    names = owner.to_bytes(4, "big") + holder.to_bytes(4, "big")
    return b"".join(
        digest(b"share", context, names, bytes([kind]), share)[:DIGEST] for kind, share in enumerate(shares)
    )


def own_mask(context: bytes, client: int, seed: bytes) -> bytes:
    """The key of the node's own mask stream."""
    return _derive(seed, context, b"own mask" + client.to_bytes(4, "big"))


def mask_private(secret: bytes) -> X25519PrivateKey:
    """The private mask key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret)


def pair_mask(context: bytes, key: X25519PrivateKey, one: tuple[int, bytes], other: tuple[int, bytes]) -> bytes:
    """The key of the mask stream of two nodes, from the private mask key of one and the public one of the other.

    `one` and `other` are client number and public key; both nodes get the same key.
    """
    shared = agree(key, other[1])
    low, high = sorted((one, other))
    info = b"pair mask" + low[0].to_bytes(4, "big") + low[1] + high[0].to_bytes(4, "big") + high[1]
    return _derive(shared, context, info)


def channel(context: bytes, shared: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """The cipher for shares from one node to another; the other direction has another key."""
    info = b"channel" + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
    return ChaCha20Poly1305(_derive(shared, context, info))


def seal(cipher: ChaCha20Poly1305, context: bytes, shares: tuple[bytes, bytes]) -> bytes:
    """The shares of seed and mask secret for one neighbour, encrypted."""
    return cipher.encrypt(NONCE, b"".join(shares), context)


def unseal(cipher: ChaCha20Poly1305, context: bytes, data: bytes, sender: int) -> tuple[bytes, bytes]:
    """The shares of a neighbour; raises `Abort` unless they come from it, for this node and this session."""
    try:
        plain = cipher.decrypt(NONCE, data, context)
    except (InvalidTag, ValueError):
        raise Abort(f"the shares of client {sender} are not those it encrypted for this node and session") from None
    if len(plain) != 2 * shamir.SIZE:
        raise Abort(f"the shares of client {sender} have {len(plain)} bytes, expected {2 * shamir.SIZE}")
    return plain[: shamir.SIZE], plain[shamir.SIZE :]


def agree(mine: X25519PrivateKey, theirs: bytes) -> bytes:
    """The secret that two nodes have in common, from the private key of one and the public key of the other."""
    try:
        return mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise Abort("a public key of this session is not a point of X25519 with a secret result") from None


def _derive(secret: bytes, context: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, context, info).derive(secret)
