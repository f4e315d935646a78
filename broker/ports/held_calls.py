"""Calls that arrive at a master during or just after a transfer of leadership: held, then relayed to the next master.

Official clients know no answer that means "ask another replica", so a refused send would fail in the application. So a
master that accepts nothing new acts as its followers do (relays.py). It holds the call until another master is known,
up to WAIT_S, and relays it there. If the transfer fails, this broker executes the call.

Only calls that were not executed are relayed. A call that was accepted before is answered before the transfer ends. A
call that another replica relayed here is rejected, and that replica tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final

from google.protobuf.message import Message

from ...proto.errors import MasterFenced, PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Method, MethodKind, MethodTable
from ..service_v2.service import RELAYED
from .relays import Relays

_SERVICE: Final = v2.DESCRIPTOR.services_by_name["MessagingService"]


def holding(table: MethodTable, check_open: Callable[[], None], relays: Relays) -> MethodTable:
    """Return TABLE of a master. RELAYS relays unary calls of official clients that arrive while CHECK_OPEN raises an
    error.
    """
    carried = {method.path: method for method in relays.methods(_SERVICE)}
    return MethodTable(
        {
            method.path: replace(
                method, handler=_held(method, carried[method.path], check_open, relays)
            )
            if method.path in carried and method.kind is MethodKind.UNARY
            else method
            for method in table
        }
    )


def _held(
    own: Method, carried: Method, check_open: Callable[[], None], relays: Relays
) -> Callable[..., Any]:
    def must_wait(call: Call) -> bool:
        try:
            check_open()
        except MasterFenced:
            if RELAYED in call.metadata:
                raise relays.turned_away() from None
            call.outlast()
            return True
        return False

    if iscoroutinefunction(own.handler):

        async def answer_later(request: Message, call: Call) -> Any:
            handler = carried.handler if must_wait(call) else own.handler
            return await handler(request, call)

        return answer_later

    def answer(request: Message, call: Call) -> Any:
        if not must_wait(call):
            return own.handler(request, call)
        relays.spawn(_reply(carried.handler(request, call), call))
        return LATER

    return answer


async def _reply(carried: Awaitable[Message], call: Call) -> None:
    """Answer CALL with the reply of the next master."""
    try:
        reply = await carried
    except PocketMQError as error:
        if not call.cancelled:
            call.fail(error)
    else:
        if not call.cancelled:
            call.reply(reply)
