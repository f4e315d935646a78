"""The list of name servers: independent of each other, any of them may be lost.

A question goes to the one that answered last; if it cannot be reached, to the others in turn.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from ..proto.errors import Disconnected, NotServed, PocketMQError, RequestTimeout
from .connections import NAME_SERVER, Connections
from .name_server_addresses import DEFAULT_NAME_SERVERS

Reply = TypeVar("Reply", bound=Message)


class NameServers:
    """Asks the name servers at ADDRESSES."""

    def __init__(
        self, addresses: tuple[str, ...], connections: Connections, timeout_ms: int
    ) -> None:
        self.addresses = addresses
        self._connections = connections
        self._timeout_ms = timeout_ms
        self._last_good = 0

    async def ask(self, method: str, request: Message, reply_type: type[Reply]) -> Reply:
        """Return the answer of the first server that gives one.

        Raises Disconnected, naming all, if none does; NotServed if what answers is no name server.
        """
        silent: list[str] = []
        other: NotServed | None = None
        for step in range(len(self.addresses)):
            place = (self._last_good + step) % len(self.addresses)
            try:
                reply = await self.ask_one(self.addresses[place], method, request, reply_type)
            except (Disconnected, RequestTimeout) as error:
                silent.append(error.message)
                continue
            except NotServed as error:
                silent.append(error.message)
                other = error
                continue
            self._last_good = place
            return reply
        kind = Disconnected if other is None else NotServed
        raise kind(f"no name server answers: {'; '.join(silent)}", nameservers=self)

    async def ask_one(
        self, address: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        """Return the answer of the name server at ADDRESS."""
        connection = self._connections.to(address)
        try:
            return await connection.call(
                NAME_SERVER + method, request, reply_type, self._timeout_ms
            )
        except NotServed as error:
            raise NotServed(
                f"{address} is no name server: it does not serve {method}; is it the port of a broker? (a name server"
                f" listens on {DEFAULT_NAME_SERVERS.rpartition(':')[2]} unless it is told otherwise)",
                address=address,
            ) from error

    async def ask_all(self, method: str, request: Message, reply_type: type[Reply]) -> list[Reply]:
        """Return the answers of all servers that can be reached; raise Disconnected if there are none."""
        replies: list[Reply] = []
        last: PocketMQError | None = None
        for address in self.addresses:
            try:
                replies.append(await self.ask_one(address, method, request, reply_type))
            except (Disconnected, RequestTimeout) as error:
                last = error
        if not replies:
            raise Disconnected(
                f"no name server answers; the last: {last and last.message}", nameservers=self
            )
        return replies

    def __str__(self) -> str:
        return ", ".join(self.addresses)
