"""Words that all parts share: taps, units of protection, neighbouring relations. Each is defined here once.

The papers' leakage types 0, 1 and 2 are the taps `server`, `client` and `example`.
"""

from __future__ import annotations

TAPS: dict[str, str] = {
    "example": "gradients of single examples, inside a client (leakage type 2)",
    "batch": "a batch's gradient, inside a client",
    "client": "a client's update before it leaves (leakage type 1)",
    "server": "what the server receives from a client (leakage type 0)",
    "broadcast": "the model that a client receives",
    "release": "the final or published model",
}
# The taps that have an account, in the order of a table. What the tap `batch` shows has no account of its own.
ACCOUNTED_TAPS = ("example", "client", "server", "broadcast", "release")

# What one tap shows reaches the next one processed further, so along this chain an account can only fall. What a client
# receives is made from the model that is released.
CHAIN = ("example", "client", "server", "release", "broadcast")

# One record at one client; one distinct example with all its copies; all records of one client.
UNITS = ("example", "image", "client")
# The units of a single node, which cannot know what others hold: no copies.
NODE_UNITS = ("example", "client")

ADJACENCIES = ("add-remove", "zero-out", "replace")
