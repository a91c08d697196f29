"""The idx format."""

from __future__ import annotations

import pytest

from fedveil.core.errors import DataError
from fedveil.data.idx import parse_idx


def test_idx_parsing():
    good = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 1, 3)) + bytes(range(6))
    assert parse_idx(good, "t").tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    for bad in (b"", good[:9], good[:-1], good + b"x", b"\0\0\x0d" + good[3:], b"<html>" + good):
        with pytest.raises(DataError, match="fetch it again"):
            parse_idx(bad, "t")
