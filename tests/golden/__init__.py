"""The golden record: what every defence, every ledger rule and every attack computed when the record was made.

It is the safety net under a refactor: a change that should not alter a result must leave this record alone.

| file | content |
|---|---|
| `cases.py` | the grid of configs in short form, and the small part of it that `make test` runs |
| `harness.py` | the only file that imports fedveil; adapt it when modules move |
| `digest.py` | a model's parameters as a few numbers, and the comparisons |
| `store.py` | reads and writes the record |
| `record.py` | makes the record |
| `training.json` | final parameters after 3 rounds in float64, to be met by both engines |
| `ledger.json` | every row of `fedveil ledger`; the texts (reason, assumptions) are not recorded |
| `attacks.json` | outcome and score of each victim, or the numbers of an inference attack |

Each file holds its configs with every key written out, so a change of a default does not touch them. `base` is a whole
config; a case lists the keys in which it differs from it, and all of its defences.

`make test` runs a small part of the grid, `make slow` the rest. All of it, and nothing else:

    python -m pytest tests/golden -m "slow or not slow"

Record again from the root of the repository, all of it or only the cases whose names contain a text:

    python -m tests.golden.record
    python -m tests.golden.record fed-cdp

Then read `git diff tests/golden`. Name each changed line in the commit message, with the reason why it changed. A line
that changed without a reason is a bug.

Training is compared at 1e-9 of the norm of each array, ε at 1e-6, and attacks at the tolerances in `digest.py`. Where
the two engines agree a digest is stored once, as `both`. With a schedule of the clip or the noise they agree at 1e-7
only, because the vectorised engine computes the share of the rounds in float32; there each has its own digest.

Noise is drawn from `train.seed`. If the config has a key `train.noise_seed`, the harness sets it to the same number for
training and attacks, and leaves it out of the ledger, because noise from a known seed is not certified.
"""
