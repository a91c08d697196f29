"""Broken mechanisms are caught, each by a test that says why; sound ones never alarm.

A mechanism is broken by replacing the project's own functions for the length of a test. JAX's caches are emptied before and
after, and no program is kept on disk, so that no test runs what another has compiled.
"""

import pytest
from mutations import MUTATIONS, SOUND, federation, small

from fedveil import audit
from fedveil.audit import measure
from fedveil.audit.noise_tests import findings
from fedveil.audit.path import NodePath, canary_path, own_path
from fedveil.audit.rows import test_row as row_of
from fedveil.core.errors import RunError

# Where the quick suite looks for each fault, and the test that has to see it.
QUICK = {
    "a layer without noise": ("own", "scale", "no noise in"),
    "norms up to 10 C pass": ("canary", "clip", "10 of what a canary far above the clip leaves"),
    "a clip of 10 C": ("canary", "scale", "noise over contribution is"),
    "one noise for all steps": ("canary", "correlation", "correlation of steps"),
    "one noise for all rounds": ("canary", "correlation", "correlation of rounds"),
    "bias unclipped": ("canary", "scale", "noise over contribution is"),
    "normalisation unclipped": ("canary", "scale", "noise over contribution is"),
    "deployed noise halved": ("node", "scale", "noise over contribution is"),
    "micro-batches without noise": ("canary", "scale", "no noise in"),
    "noise halved": ("canary", "scale", "noise over contribution is"),
    "learning rate of the next round": ("canary", "scale", "noise over contribution is"),
}


def rows_on(made, where, most_rounds=2):
    """The rows of one path alone, with the error that a whole audit of a hundred tests would allow each."""
    (defense,) = made.simulator.task.defenses
    (release,) = defense.events(made.simulator.task.setting)
    rounds = measure.rounds_to_probe(release, made.simulator.task.setting)[-most_rounds:]
    if where == "canary":
        path = canary_path(made.simulator, (defense,), 10, seed=5)
        found = measure.measure_canaries(path, release, rounds, range(6))
    else:
        path = own_path(made.simulator, (defense,), seed=5)
        path = NodePath(path) if where == "node" else path
        found = measure.measure_own(path, release, rounds[:1], range(2))
    return [row_of(finding, 100, 5e-4, 0.999, 0.0) for finding in findings(found)]


def test_every_fault_has_a_quick_test():
    assert set(QUICK) == set(MUTATIONS)


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_is_caught_where_it_is(fault, patch):
    apply, _, make = MUTATIONS[fault]
    where, test, says = QUICK[fault]
    made = make()
    apply(patch)
    rows = rows_on(made, where)
    caught = [row for row in rows if row.alarm and row.test == test]
    assert any(says in row.reason for row in caught), [row.reason for row in rows if row.alarm]
    assert all(row.caught_by for row in caught)
    with pytest.raises(RunError, match="the noise is not what is declared") as error:
        audit.check_certificates(rows)
    assert error.value.exit_code == 1


@pytest.mark.parametrize("where", ["canary", "own", "node"])
def test_a_sound_mechanism_does_not_alarm(where, patch):
    rows = rows_on(small(), where)
    assert {row.test for row in rows} >= {"scale", "correlation"}
    assert not [row.reason for row in rows if row.alarm]
    audit.check_certificates(rows)


# --- at the default size


@pytest.mark.slow
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_is_caught_at_the_default_size(fault, patch):
    apply, default, _ = MUTATIONS[fault]
    made = default()
    apply(patch)
    rows = audit(made)
    with pytest.raises(RunError) as error:
        audit.check_certificates(rows)
    assert error.value.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SOUND)
def test_no_alarm_of_sound_mechanisms(name, seed, patch):
    rows = audit(SOUND[name](seed))
    assert not [(row.caught_by, row.reason) for row in rows if row.alarm]
    audit.check_certificates(rows)


@pytest.mark.slow
def test_no_alarm_on_resnet20(patch):
    made = federation(model={"name": "resnet20"})
    assert not [row.caught_by for row in audit(made, methods=("noise",)) if row.alarm]
