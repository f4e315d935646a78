"""Listing the connections of servers.

async with AsyncServerConnections() as servers:
    for found in await servers.all():
        print(found.address, found.connections)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import Final

from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.carrier import ConnectionFigures, ConnectionTotals
from ..connections import Connections
from ..name_server_addresses import parse_addresses
from .brokers import AsyncAsker, Brokers

#: Maximum number of pages per server, each of a thousand connections.
PAGES_MAX: Final = 100

_PATH: Final = "/pocketmq.v1.Connections/List"
_FIELDS: Final = tuple(field.name for field in fields(ConnectionFigures))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnections:
    """The open connections of one server when it replied, sorted by id, and totals of all connections."""

    #: "name server", "broker NAME", or "server" if only the address is known.
    server: str
    address: str
    connections: tuple[ConnectionFigures, ...] = ()
    totals: ConnectionTotals | None = None
    #: Why the request failed; `totals` is None then.
    error: PocketMQError | None = None


class AsyncServerConnections(AsyncAsker):
    """The connections of name servers and of all brokers, or only of the server at ADDRESS, or of BROKER."""

    def __init__(
        self,
        nameservers: str | None = None,
        address: str | None = None,
        *,
        broker: str | None = None,
        request_timeout_ms: int = 5_000,
        connections: Connections | None = None,
    ) -> None:
        """CONNECTIONS are for tests."""
        super().__init__(nameservers, request_timeout_ms, connections)
        self._broker = broker
        self._addresses = parse_addresses(address, "address") if address is not None else ()

    async def all(self) -> list[ServerConnections]:
        """Return the connections of each server: name servers, then brokers by name.

        The result of a server that fails has the error. If all servers fail, the first error is raised.
        """
        found = await asyncio.gather(*(self._list_or_error(*one) for one in await self._servers()))
        errors = [one.error for one in found if one.error is not None]
        if len(errors) == len(found):
            raise errors[0]
        return found

    async def _servers(self) -> list[tuple[str, str]]:
        """Return the kind and name of each server, and its address."""
        if self._addresses:
            return [("server", address) for address in self._addresses]
        if self._broker is not None:
            known = await Brokers(self._session, self._timeout_ms).addresses(self._broker)
            return [(f"broker {name}", address) for name, address in known.items()]
        brokers = await self._session.routes.brokers()
        return [
            *(("name server", address) for address in self._session.name_servers.addresses),
            *((f"broker {name}", address) for name, address in sorted(brokers.items())),
        ]

    async def _list_or_error(self, server: str, address: str) -> ServerConnections:
        try:
            return await self._list(server, address)
        except PocketMQError as error:
            return ServerConnections(server=server, address=address, error=error)

    async def _list(self, server: str, address: str) -> ServerConnections:
        found: list[ConnectionFigures] = []
        reply = pb.ConnectionListReply()
        for _ in range(PAGES_MAX):
            request = pb.ConnectionListRequest(first_id=reply.next_id)
            connection = self._session.connections.to(address)
            reply = await connection.call(_PATH, request, pb.ConnectionListReply, self._timeout_ms)
            found += map(figures_of, reply.connections)
            if not reply.next_id:
                break
        return ServerConnections(
            server=server,
            address=address,
            connections=tuple(found),
            totals=totals_of(reply.totals),
        )


def totals_of(message: pb.ConnectionTotals) -> ConnectionTotals:
    """Return the totals in MESSAGE."""
    return ConnectionTotals(
        open=message.open,
        accepted=message.accepted,
        refused=message.refused,
        closed=dict(message.closed),
    )


def figures_of(message: pb.ConnectionFigures) -> ConnectionFigures:
    """Return the connection in MESSAGE."""
    return ConnectionFigures(**{name: getattr(message, name) for name in _FIELDS})
