"""Reading and changing the settings of servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ..name_server_addresses import parse_addresses
from .brokers import AsyncBrokerAsker, Brokers, request_of

_SETTINGS_PATH: Final = "/pocketmq.v1.Settings/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """One setting of a server. Values are JSON. `origin` is where the value was set."""

    key: str
    value: str
    #: Empty: there is no default.
    default: str
    origin: str
    #: Whether it can be changed without a restart.
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server when it replied."""

    #: "broker NAME", or "server" if only the address is known.
    server: str
    address: str
    settings: tuple[ServerSetting, ...]


class AsyncSettings(AsyncBrokerAsker):
    """The settings of all brokers, or of one BROKER: its name, or the address of any server."""

    async def all(self) -> list[ServerSettings]:
        """Return the settings of each server, sorted by name."""

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
        """Set KEY to VALUE, in YAML, on each server; return (server, setting before, setting after) of each.

        Raises the error of the first server that refuses it. The servers before it have changed the setting then.
        """
        request = request_of(pb.SetSettingRequest, key=key, value=value)
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
        """Return the kind and name of each server, and its address."""
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
