"""The gRPC service `apache.rocketmq.v2.MessagingService`: its method table, combined from those of the handlers.

A handler is an ordinary one of `proto/rpc/methods.py`. `unary` wraps it: errors become a status in the reply, and a
call without a client id is refused, as the protocol requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from ...proto import rpc
from ...proto.access.audit import host_of
from ...proto.access.policies import is_loopback
from ...proto.errors import PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, MethodEntry, MethodTable
from ..callbacks import Step
from .statuses import Refused, status_of, status_of_bug

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CLIENT_ID: Final = "x-mq-client-id"
#: Metadata of calls that a follower relayed to the master; the value is the client's host.
RELAYED: Final = "pocketmq-relayed"
Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


class ServedMethods(Protocol):
    """Implements some of the methods."""

    def methods(self) -> MethodTable: ...


class ServiceV2:
    """All methods of the service, each implemented by one of the HANDLERS."""

    def __init__(
        self,
        handlers: Sequence[ServedMethods],
        wrapped: Callable[[MethodTable], MethodTable] = lambda table: table,
    ) -> None:
        """WRAPPED returns a table with the common wrappers of all calls."""
        self._handlers = handlers
        self._wrapped = wrapped

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        handlers = (each.methods() for each in self._handlers)
        return self._wrapped(reduce(or_, handlers, MethodTable()))


def service(entries: Mapping[str, MethodEntry]) -> MethodTable:
    """Return the table of ENTRIES by method name."""
    return rpc.service(SERVICE, entries)


def client_id(call: rpc.CallContext) -> str:
    """Return the id of the calling client; raise Refused (CLIENT_ID_REQUIRED) if it is missing.

    With users it is "user/id", so that a user cannot act as a client of another user.
    """
    found = call.metadata.get(CLIENT_ID, "")
    if not found.strip():
        raise Refused(
            v2.CLIENT_ID_REQUIRED,
            f"the metadata {CLIENT_ID} is missing or blank: every call names its client",
            field=CLIENT_ID,
        )
    user = call.user.name
    return f"{user}/{found}" if user else found


def client_host(call: rpc.CallContext) -> str:
    """Return the host of the calling client, "loopback" for this machine; "" with users, who identify clients.

    If a follower relayed the call, it is the host that the follower reports.
    """
    if call.user.name:
        return ""
    host = call.metadata.get(RELAYED) or host_of(call.peer)
    return "loopback" if is_loopback(host) else host


def unary(
    request_type: type[Request],
    reply_type: type[Any],
    handler: Callable[[Request, Call], Any],
    *,
    anonymous: bool = False,
) -> MethodEntry:
    """Return the entry of a unary method whose errors become statuses. ANONYMOUS: clients need no client id.

    HANDLER returns its reply, or LATER and completes the call itself, including errors.
    """
    name = request_type.DESCRIPTOR.name

    def answer(request: Request, call: Call) -> Any | Later:
        try:
            if not anonymous:
                client_id(call)
            return handler(request, call)
        except PocketMQError as error:
            return reply_type(status=status_of(error))
        except Exception as bug:  # A bug fails only this call, not the process.
            return reply_type(status=status_of_bug(name, bug))

    return rpc.unary(request_type, reply_type, answer)


def answered_when(
    begin: Step, call: Call, answer: Callable[[PocketMQError | None], Reply]
) -> Reply | Later:
    """Return ANSWER(result) for the result of BEGIN; LATER if it is not available at once: then CALL gets it."""
    results: list[PocketMQError | None] = []
    waits = False

    def tell(error: PocketMQError | None) -> None:
        results.append(error)
        if waits:
            call.reply(answer(error))

    begin(tell)
    if results:
        return answer(results[0])
    waits = True
    return LATER
