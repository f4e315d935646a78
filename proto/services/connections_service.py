"""The service `pocketmq.v1.Connections`: the clients connected to this server, and the traffic of each connection.

It resembles gRPC's channelz, limited to data that helps to find slow, numerous or silent clients. Answers are pages in
the order of connection ids, up to `PAGE_MAX` connections each, which takes the event loop about 3 ms. A connection that
opens or closes meanwhile may be missing; none appears twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from ..errors import InvalidArgument, Unsupported
from ..gen import pocketmq_v1_pb2 as pb
from ..rpc import Call, MethodTable, service, unary
from ..rpc.carrier import ConnectionFigures, ConnectionTotals, CountsConnections

NAME: Final = "pocketmq.v1.Connections"
#: Connections in one answer.
PAGE_MAX: Final = 1_000
#: Characters of a user agent and of a path, both of which the peer chose.
TEXT_MAX: Final = 200
_FIELDS: Final = tuple(field.name for field in fields(ConnectionFigures))


class ConnectionsService:
    """Returns the connections and metrics of a carrier. CARRIER returns it, because it is made after its tables."""

    def __init__(self, carrier: Callable[[], object]) -> None:
        self._carrier = carrier

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        entry = unary(pb.ConnectionListRequest, pb.ConnectionListReply, self.list_open)
        return service(NAME, {"List": entry})

    def list_open(self, request: pb.ConnectionListRequest, call: Call) -> pb.ConnectionListReply:
        """Return the open connections, and the counters of all."""
        for field in ("first_id", "max_connections"):
            value = getattr(request, field)
            if value < 0:
                raise InvalidArgument(
                    f"{field} is {value}: must be 0 or more", field=field, limit=0, value=value
                )
        carrier = self._carrier()
        if not isinstance(carrier, CountsConnections):
            raise Unsupported(
                "this server has no metrics of connections, because it runs with --grpc grpcio: use --grpc builtin"
            )
        size = min(request.max_connections or PAGE_MAX, PAGE_MAX)
        found = carrier.connection_figures(request.first_id, size + 1)
        return pb.ConnectionListReply(
            connections=map(_message, found[:size]),
            next_id=found[size].id if len(found) > size else 0,
            totals=_totals(carrier.connection_totals()),
        )


def _message(figures: ConnectionFigures) -> pb.ConnectionFigures:
    fields: dict[str, Any] = {name: getattr(figures, name) for name in _FIELDS}
    fields["user_agent"] = _cut(figures.user_agent)
    fields["last_path"] = _cut(figures.last_path)
    return pb.ConnectionFigures(**fields)


def _totals(totals: ConnectionTotals) -> pb.ConnectionTotals:
    return pb.ConnectionTotals(
        open=totals.open,
        accepted=totals.accepted,
        refused=totals.refused,
        closed=dict(totals.closed),
        requests_held_bytes=totals.requests_held_bytes,
        answers_held_bytes=totals.answers_held_bytes,
    )


def _cut(text: str) -> str:
    """Return TEXT of a peer without characters that UTF-8 cannot encode, cut to TEXT_MAX characters."""
    return text[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]
