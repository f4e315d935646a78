"""The brokers' clocks, as an admin asks for them: what time it is there, and moving it where it can be moved."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ..proto.errors import NotServed
from ..proto.gen import pocketmq_v1_pb2 as pb
from .administration.brokers import AsyncAsker, Brokers
from .connections import Connections

#: A move may set off hours of work.
ADVANCE_TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class BrokerClock:
    """The time of one broker when it answered; VIRTUAL: it moves only when it is told to."""

    broker: str
    address: str
    now_ms: int
    virtual: bool


class AsyncClocks(AsyncAsker):
    """The clocks of the brokers behind NAMESERVERS; with BROKER (a name, or an address) of one of them."""

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
        self._quick = Brokers(self._session, request_timeout_ms)
        self._patient = Brokers(self._session, ADVANCE_TIMEOUT_MS)

    async def now(self) -> list[BrokerClock]:
        """Return the clock of each broker, by name."""
        return await self._of_all(self._quick, "Now", pb.ClockRequest())

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
        return await self._of_all(self._patient, "AdvanceClock", request)

    async def _of_all(
        self, brokers: Brokers, method: str, request: pb.ClockRequest | pb.AdvanceClockRequest
    ) -> list[BrokerClock]:
        async def one(name: str, address: str) -> BrokerClock:
            reply = await brokers.ask(name, method, request, pb.ClockReply)
            return BrokerClock(name, address, reply.now_ms, reply.virtual)

        addresses = await self._quick.addresses(self._broker)
        return await asyncio.gather(*(one(name, address) for name, address in addresses.items()))
