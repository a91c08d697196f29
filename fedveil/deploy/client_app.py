"""The Flower ClientApp of a node: unpacks a message, calls `node`, packs the answer. Nothing else happens here.

The folder of the node comes from the node's own start (`--node-config`), never from a message.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedveil.deploy.carry import from_record, to_record

app = ClientApp()


def _home(context: Context) -> Path:
    from fedveil.deploy.node import cached_compilations

    home = Path(str(context.node_config["home"]))
    cached_compilations(home)
    return home


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def introduce(message: Message, context: Context) -> Message:
    """Who this node is."""
    from fedveil.deploy import node

    home = _home(context)
    try:
        told = ConfigRecord(dict(node.introduce(home).values()))
    except Exception:
        raise RuntimeError(node.kept_here(home)) from None  # Flower sends these words to the server
    return Message(RecordDict({"introduction": told}), reply_to=message)


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def take_part(message: Message, context: Context) -> Message:
    """One round."""
    from fedveil.deploy import node
    from fedveil.deploy.messages import Request

    request = Request.read(dict(message.content.config_records["request"]))
    reply, parts = node.answer(_home(context), request, from_record(message.content.array_records["model"]))
    content = RecordDict({"reply": ConfigRecord(dict(reply.values())), "update": to_record(parts)})
    return Message(content, reply_to=message)
