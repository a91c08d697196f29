"""The seats from which a training can be watched. The papers' leakage types 0, 1 and 2 are three of them."""

from __future__ import annotations

TAPS: dict[str, str] = {
    "example": "gradients of single examples, inside a client (leakage type 2)",
    "batch": "a batch's gradient, inside a client",
    "client": "a client's update before it leaves (leakage type 1)",
    "server": "what the server receives from a client (leakage type 0)",
    "broadcast": "the model that a client receives",
    "release": "the final or published model",
}
