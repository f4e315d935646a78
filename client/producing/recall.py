"""Takes delayed messages back, at the broker that keeps them.

Not tried again by itself: where an answer was lost, a second try may say MessageNotFound of what the first one did.
"""

from __future__ import annotations

from ...proto.errors import InvalidArgument, RouteNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.recall_handle import decode_handle
from ..connections import BROKER
from ..routes import master_addresses
from ..session import Session
from .receipt import Receipt


async def recall(session: Session, handle: str | Receipt, timeout_ms: int) -> str:
    """Take back the message of HANDLE; return its id. Raises what producer.py says."""
    text = handle_of(handle)
    named = decode_handle(text)
    address = master_addresses(await session.routes.brokers()).get(named.broker)
    if address is None:
        raise RouteNotFound(
            f"broker {named.broker!r}, which keeps the message, is not registered at {session.name_servers}",
            broker=named.broker,
            nameservers=session.name_servers,
        )
    request = pb.RecallRequest(topic=named.topic, handle=text)
    connection = session.connections.to(address)
    reply = await connection.call(BROKER + "Recall", request, pb.RecallReply, timeout_ms)
    return reply.message_id


def handle_of(handle: str | Receipt) -> str:
    """Return the text of HANDLE; raise InvalidArgument for a receipt that has none, and for other things."""
    if isinstance(handle, str):
        return handle
    if not isinstance(handle, Receipt):
        raise InvalidArgument(
            f"recall takes a recall handle or a Receipt, not {type(handle).__name__}",
            field="handle",
        )
    if handle.recall_handle:
        return handle.recall_handle
    why = "waits for a delay level" if handle.due_ms else "was delivered at once"
    raise InvalidArgument(
        f"message {handle.message_id} {why}: only one sent with delay=… or deliver_at=… can be recalled",
        field="handle",
        value=handle.message_id,
    )
