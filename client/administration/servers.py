"""Servers, as an admin asks them: who is connected, their settings, the brokers' clocks.

async with AsyncServerConnections() as servers:        async with AsyncSettings() as settings:
    for found in await servers.all():                      for server in await settings.all():
        print(found.address, found.connections)                print(server.server, server.settings)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import Final

from ...proto.errors import NotServed, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.methods import ConnectionFigures, ConnectionTotals
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
    """Asks NAMESERVERS and the brokers that they know; with ADDRESS that server alone, and nobody else."""

    def __init__(
        self,
        nameservers: str | None = None,
        address: str | None = None,
        *,
        request_timeout_ms: int = 5_000,
        connections: Connections | None = None,
    ) -> None:
        """CONNECTIONS are for tests."""
        super().__init__(nameservers, request_timeout_ms, connections)
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


# ---------------------------------------------------------------- the settings of servers


_SETTINGS_PATH: Final = "/pocketmq.v1.Settings/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """One setting of a server. Values are JSON; origin says where the value came from."""

    key: str
    value: str
    #: Empty: it has none.
    default: str
    origin: str
    #: May it change without a restart?
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server when it answered."""

    #: "broker NAME", or "server" where only the address is known.
    server: str
    address: str
    settings: tuple[ServerSetting, ...]


class _AsyncBrokerAsker(AsyncAsker):
    """Asks the brokers behind NAMESERVERS; with BROKER that one: its name, or an address."""

    def __init__(
        self,
        nameservers: str | None = None,
        broker: str | None = None,
        *,
        request_timeout_ms: int = 5_000,
        connections: Connections | None = None,
    ) -> None:
        """CONNECTIONS are for tests."""
        super().__init__(nameservers, request_timeout_ms, connections)
        self._broker = broker


class AsyncSettings(_AsyncBrokerAsker):
    """Asks the brokers behind NAMESERVERS; with BROKER that one: its name, or the address of any server."""

    async def all(self) -> list[ServerSettings]:
        """Return the settings of each server, brokers by name."""

        async def of(server: str, address: str) -> ServerSettings:
            reply = await self._session.connections.to(address).call(
                f"{_SETTINGS_PATH}List",
                pb.SettingListRequest(),
                pb.SettingListReply,
                self._timeout_ms,
            )
            settings = tuple(map(_setting, reply.settings))
            return ServerSettings(server=server, address=address, settings=settings)

        return await asyncio.gather(*(of(*one) for one in await self._servers()))

    async def set(self, key: str, value: str) -> list[tuple[str, ServerSetting, ServerSetting]]:
        """Give KEY the value VALUE, YAML, at each server; return of each who it is, and the setting before and after.

        Raises what a server refuses it with; those that were asked before have changed it then.
        """
        request = pb.SetSettingRequest(key=key, value=value)
        changed = []
        for server, address in await self._servers():
            connection = self._session.connections.to(address)
            reply = await connection.call(
                f"{_SETTINGS_PATH}Set", request, pb.SetSettingReply, self._timeout_ms
            )
            changed.append(
                (f"{server} at {address}", _setting(reply.before), _setting(reply.after))
            )
        return changed

    async def _servers(self) -> list[tuple[str, str]]:
        """Return what is asked: what it is, and where."""
        if self._broker is not None and ":" in self._broker:
            return [("server", address) for address in parse_addresses(self._broker, "broker")]
        known = await Brokers(self._session, self._timeout_ms).addresses(self._broker)
        return [(f"broker {name}", address) for name, address in known.items()]


def _setting(message: pb.Setting) -> ServerSetting:
    return ServerSetting(
        key=message.key,
        value=message.value,
        default=message.default_value,
        origin=message.origin,
        live=message.live,
    )


# ---------------------------------------------------------------- the brokers' clocks, as an admin asks for them


#: A move may set off hours of work.
ADVANCE_TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class BrokerClock:
    """The time of one broker when it answered; VIRTUAL: it moves only when it is told to."""

    broker: str
    address: str
    now_ms: int
    virtual: bool


class AsyncClocks(_AsyncBrokerAsker):
    """The clocks of the brokers behind NAMESERVERS; with BROKER (a name, or an address) of one of them."""

    async def now(self) -> list[BrokerClock]:
        """Return the clock of each broker, by name."""
        return await self._of_all("Now", pb.ClockRequest(), self._timeout_ms)

    async def advance(self, by_ms: int) -> list[BrokerClock]:
        """Move the clocks by BY_MS; return them once all that fell due on the way has happened.

        Raises NotServed, and moves none, if one of the brokers lives by its machine's clock, and InvalidArgument for a
        negative step or one beyond ten years.
        """
        real = [clock.broker for clock in await self.now() if not clock.virtual]
        if real:
            raise NotServed(
                f"broker {', '.join(real)} lives by the machine's clock, which nobody moves:"
                " start it with --clock virtual",
                broker=real[0],
            )
        request = pb.AdvanceClockRequest(by_ms=by_ms)
        return await self._of_all("AdvanceClock", request, ADVANCE_TIMEOUT_MS)

    async def _of_all(
        self, method: str, request: pb.ClockRequest | pb.AdvanceClockRequest, timeout_ms: int
    ) -> list[BrokerClock]:
        brokers = Brokers(self._session, timeout_ms)

        async def one(name: str, address: str) -> BrokerClock:
            reply = await brokers.ask(name, method, request, pb.ClockReply)
            return BrokerClock(name, address, reply.now_ms, reply.virtual)

        known = await Brokers(self._session, self._timeout_ms).addresses(self._broker)
        return await asyncio.gather(*(one(name, address) for name, address in known.items()))
