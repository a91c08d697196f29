"""Why `cohort` noise is refused in deployment: what Flower's secure aggregation does not hide. If one of these fails after
an update of Flower, the refusal in `coordinator.check_deployable` and docs/deployment.md must be reconsidered."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def flower() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")


def test_masks_come_from_32_bits() -> None:
    """Keys of 32 bytes that agree in the exclusive or of their words make the same mask: at most 2^32 masks exist."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    key = bytes(range(32))
    short = np.bitwise_xor.reduce(np.frombuffer(key, "<u4"))
    other = int(short).to_bytes(4, "little") + bytes(28)
    assert np.array_equal(pseudo_rand_gen(key, 2**32, [(50,)])[0], pseudo_rand_gen(other, 2**32, [(50,)])[0])


def test_a_node_gives_out_both_shares_of_the_same_neighbour() -> None:
    """A server that calls one node both active and lost gets what removes all its masks."""
    from flwr.app import ConfigRecord
    from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, _unmask
    from flwr.common.secure_aggregation.secaggplus_constants import Key

    state = SecAggPlusState()
    state.nid, state.threshold = 1, 1
    state.rd_seed_share_dict, state.sk1_share_dict = {2: b"own mask"}, {2: b"pair key"}
    told = _unmask(state, ConfigRecord({Key.ACTIVE_NODE_ID_LIST: [2], Key.DEAD_NODE_ID_LIST: [2]}))
    assert told[Key.SHARE_LIST] == [b"own mask", b"pair key"]
