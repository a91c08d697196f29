"""Only messages with the expected fields, arrays and origin are used."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from fedveil.deploy.coordinator import accept
from fedveil.deploy.messages import BadMessage, ReceivedReply, Reply, Request, pack, unpack

LIKE = {"dense": {"b": np.zeros(3, np.float32), "w": np.zeros((2, 3), np.float32)}}
GOOD = {"dense": {"b": np.arange(3, dtype=np.float32), "w": np.ones((2, 3), np.float32)}}


def spoiled(**changes: np.ndarray) -> dict[str, bytes]:
    return pack({"dense": {**GOOD["dense"], **changes}})


def test_there_and_back() -> None:
    back = unpack(pack(GOOD), LIKE)
    assert all(np.array_equal(back["dense"][k], GOOD["dense"][k]) for k in ("b", "w"))


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (spoiled(b=np.array([1, math.nan, 3], np.float32)), "not finite"),
        (spoiled(b=np.array([1, math.inf, 3], np.float32)), "not finite"),
        (spoiled(b=np.zeros(4, np.float32)), "wrong shape"),
        (spoiled(w=np.zeros((3, 2), np.float32)), "wrong shape"),
        (spoiled(b=np.zeros(3)), "wrong type"),
        (spoiled(b=np.zeros(3, np.int32)), "wrong type"),
        (spoiled(w=np.zeros((200, 300), np.float32)), "too large"),
        (spoiled(c=np.zeros(3, np.float32)), "'dense/c' is not part of the model"),
        (pack({"dense": {"b": GOOD["dense"]["b"]}}), "'dense/w' is missing"),
        ({**pack(GOOD), "dense/b": b"nonsense"}, "unreadable"),
        ({**pack(GOOD), "dense/b": b""}, "unreadable"),
    ],
)
def test_what_is_not_the_model_is_refused(parts: dict[str, bytes], word: str) -> None:
    with pytest.raises(BadMessage, match=word):
        unpack(parts, LIKE)


def test_objects_that_could_run_code_are_not_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}, None, 2], object), allow_pickle=True)
    with pytest.raises(BadMessage, match="unreadable"):
        unpack({**pack(GOOD), "dense/b": file.getvalue()}, LIKE)


def reply(run: str = "r", round_: int = 2, client: int = 1, refused: str = "") -> Reply:
    return Reply(run, round_, client, refused, math.nan)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (None, "no reply in time"),
        (ReceivedReply(None, {}, "the node failed"), "the node failed"),
        (ReceivedReply(reply(refused="over budget"), {}), "refused: over budget"),
        (ReceivedReply(reply(round_=1), pack(GOOD)), "stale: a reply to round 1"),
        (ReceivedReply(reply(run="q"), pack(GOOD)), "stale"),
        (ReceivedReply(reply(client=0), pack(GOOD)), "client 0"),
        (ReceivedReply(reply(), spoiled(b=np.full(3, math.nan, np.float32))), "not finite"),
    ],
)
def test_only_an_answer_to_this_very_question_counts(answer: ReceivedReply | None, word: str) -> None:
    with pytest.raises(BadMessage, match=word):
        accept(answer, "r", 2, 1, LIKE)
    accept(ReceivedReply(reply(), pack(GOOD)), "r", 2, 1, LIKE)


def test_fields_of_another_kind_are_refused() -> None:
    request = Request("r", 0, 1, "k", "", 5, 1.0, 1.0, -1)
    assert Request.read(request.as_dict()) == request and not request.test
    for wrong in ({"round": "0"}, {"round": 0.0}, {"smallest": True}, {"more": 1}):
        with pytest.raises(BadMessage):
            Request.read({**request.as_dict(), **wrong})
    with pytest.raises(BadMessage, match="version"):
        Request.read({"run": "r"})
