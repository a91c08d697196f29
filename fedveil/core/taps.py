"""Taps, units of protection and neighbouring relations: each is defined here, once.

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
# The taps that have an account, in the order of a table. The tap `batch` has none.
ACCOUNTED_TAPS = ("example", "client", "server", "broadcast", "release")

# What each tap shows is post-processing of what the tap before it shows, so ε never grows along this chain. What a client
# receives is made from the released model.
CHAIN = ("example", "client", "server", "release", "broadcast")

# One record at one client; one distinct example with all its copies; all records of one client.
UNITS = ("example", "image", "client")
# The units of a single node, which cannot know what others hold: no copies.
NODE_UNITS = ("example", "client")

ADJACENCIES = ("add-remove", "zero-out", "replace")
