"""What a run says of its privacy while no ε is computed: every tap and unit has a row, and no row claims too much."""

import fedveil
from fedveil.privacy import ledger


def rows(*defenses):
    task = fedveil.federation({"model": {"name": "logistic"}, "defense": list(defenses)}).simulator.task
    made = ledger.rows(task.defenses, task.setting, 5)
    assert len(made) == len(ledger.TAPS) * len(ledger.UNITS)
    assert all(row.epsilon is None and row.delta is None and not row.certified and row.reason for row in made)
    return {(row.tap, row.unit): row.reason for row in made}


def test_without_a_defence_every_tap_is_open():
    assert all(reason.startswith("open") for reason in rows({"name": "none"}).values())


def test_placements_leave_open_what_they_leave_open():
    example = rows({"name": "fed-cdp", "clip_scope": "flat"})
    assert "z = 6 per step" in example["example", "example"]
    batch = rows({"name": "fed-cdp", "placement": "batch"})
    assert batch["example", "example"].startswith("open") and "z = 6" in batch["client", "example"]
    server = rows({"name": "fed-sdp"})
    assert server["server", "client"].startswith("open") and "z = 6 per round" in server["release", "client"]
    assert all(reason.startswith("open") for (_, unit), reason in server.items() if unit != "client")


def test_data_driven_bounds_and_combinations_are_not_covered():
    median = rows({"name": "fed-cdp", "clip_mode": "median"})
    assert median["client", "example"].startswith("not covered")
    pruned = rows({"name": "fed-cdp"}, {"name": "prune", "stage": "example"})
    assert "holds without prune" in pruned["client", "example"]
    distinct = rows({"name": "2dp-fl"})
    assert distinct["broadcast", "client"].startswith("not covered")
