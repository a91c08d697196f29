"""What was really behind an observation made by `observe.from_tap`. For the bench alone: no attack imports this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedveil.attacks.observe import drawn_rows

if TYPE_CHECKING:
    from fedveil.federation import Federation


def of_tap(federation: Federation, number: int, clients: Sequence[int], tap: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [attacks, examples, ...shape] as the model saw them, and labels [attacks, examples]."""
    rows = []
    for client in clients:
        batches = drawn_rows(federation, number, client)
        if tap == "example":
            rows += [np.array([row]) for row in batches[0]]
        else:
            rows.append(np.concatenate(batches) if tap in ("client", "server") else batches[0])
    index = np.stack(rows)
    data = federation.dataset
    return data.train.x[index].astype(np.float64) * data.scale, data.train.y[index]
