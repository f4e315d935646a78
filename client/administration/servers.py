"""The connections of servers, as an admin asks for them.

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

#: Pages that one server is asked for, of a thousand connections each.
PAGES_MAX: Final = 100

_PATH: Final = "/pocketmq.v1.Connections/List"
_FIELDS: Final = tuple(field.name for field in fields(ConnectionFigures))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnections:
    """The connections of one server when it answered, by id, and what became of all."""

    #: "name server", "broker NAME", or "server" where only the address is known.
    server: str
    address: str
    connections: tuple[ConnectionFigures, ...] = ()
    totals: ConnectionTotals | None = None
    #: Why it tells nothing; `totals` is None then.
    error: PocketMQError | None = None


class AsyncServerConnections(AsyncAsker):
    """Asks NAMESERVERS and the brokers that they know; with ADDRESS that server alone; with BROKER, a
    registered name, that broker alone.
    """

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
        """Return what each server tells: name servers, then brokers by name.

        One that tells nothing says why; if none tells anything, the first reason is raised.
        """
        found = await asyncio.gather(*(self._asked(*one) for one in await self._servers()))
        errors = [one.error for one in found if one.error is not None]
        if len(errors) == len(found):
            raise errors[0]
        return found

    async def _servers(self) -> list[tuple[str, str]]:
        """Return what is asked: what it is, and where."""
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

    async def _asked(self, server: str, address: str) -> ServerConnections:
        try:
            return await self._told(server, address)
        except PocketMQError as error:
            return ServerConnections(server=server, address=address, error=error)

    async def _told(self, server: str, address: str) -> ServerConnections:
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
    """Return MESSAGE as a value."""
    return ConnectionTotals(
        open=message.open,
        accepted=message.accepted,
        refused=message.refused,
        closed=dict(message.closed),
    )


def figures_of(message: pb.ConnectionFigures) -> ConnectionFigures:
    """Return MESSAGE as a value."""
    return ConnectionFigures(**{name: getattr(message, name) for name in _FIELDS})
