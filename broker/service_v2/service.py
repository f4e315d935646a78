"""The methods of `apache.rocketmq.v2.MessagingService`, put together from the files that each serve some.

A handler is an ordinary one of `proto/rpc/methods.py`. `unary` wraps it, so that whatever goes wrong is a status in
the reply (statuses.py), and that a call without a client id is refused as the protocol has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message

from ...proto import rpc
from ...proto.errors import PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Call, Entry, Later, MethodTable
from .statuses import Refused, status_of, status_of_bug

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CLIENT_ID: Final = "x-mq-client-id"

Request = TypeVar("Request", bound=Message)


class Face(Protocol):
    """Serves some of the methods."""

    def methods(self) -> MethodTable: ...


class ServiceV2:
    """All methods that are served, each by one of FACES."""

    def __init__(self, faces: Sequence[Face]) -> None:
        self._faces = faces

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return reduce(or_, (face.methods() for face in self._faces), MethodTable())


def service(entries: Mapping[str, Entry]) -> MethodTable:
    """Return the table of ENTRIES by method name."""
    return rpc.service(SERVICE, entries)


def client_id(call: rpc.CallContext) -> str:
    """Return who calls; raise Refused (CLIENT_ID_REQUIRED) for a call that does not say."""
    found = call.metadata.get(CLIENT_ID, "")
    if not found.strip():
        raise Refused(
            v2.CLIENT_ID_REQUIRED,
            f"the metadata {CLIENT_ID} is missing or blank: every call names its client",
            field=CLIENT_ID,
        )
    return found


def unary(
    request_type: type[Request],
    reply_type: type[Any],
    handler: Callable[[Request, Call], Any],
    *,
    anonymous: bool = False,
) -> Entry:
    """Return the entry of a unary method whose errors become statuses; ANONYMOUS: callers need no client id.

    HANDLER returns its reply, or LATER and completes the call itself, errors included.
    """
    name = request_type.DESCRIPTOR.name

    def answer(request: Request, call: Call) -> Any | Later:
        try:
            if not anonymous:
                client_id(call)
            return handler(request, call)
        except PocketMQError as error:
            return reply_type(status=status_of(error))
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            return reply_type(status=status_of_bug(name, bug))

    return rpc.unary(request_type, reply_type, answer)
