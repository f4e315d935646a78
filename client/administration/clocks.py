"""Reading and advancing the clocks of brokers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ...proto.errors import Unsupported
from ...proto.gen import pocketmq_v1_pb2 as pb
from .brokers import AsyncBrokerAsker, Brokers, request_of

#: Advancing a clock may cause a lot of work.
ADVANCE_TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class BrokerClock:
    """The time of one broker when it replied."""

    broker: str
    """Name of the broker."""
    address: str
    """Its address."""
    now_ms: int
    """Its time in Unix milliseconds."""
    virtual: bool
    """It moves only when you advance it."""


class AsyncClockAdmin(AsyncBrokerAsker):
    """The clocks of all brokers, or of one BROKER: its name or address."""

    async def now(self) -> list[BrokerClock]:
        """Return the clock of each broker, sorted by name."""
        return await self._of_all("Now", pb.ClockRequest(), self._timeout_ms)

    async def advance(self, by_ms: int) -> list[BrokerClock]:
        """Advance all virtual clocks; return them when everything that became due has happened.

        Args:
            by_ms: Milliseconds, from 0 to ten years.

        Raises:
            Unsupported: A broker has no virtual clock. No clock is advanced then.
            InvalidArgument: `by_ms` is out of range.
        """
        real = [clock.broker for clock in await self.now() if not clock.virtual]
        if real:
            raise Unsupported(
                f"cannot advance the clock of broker {', '.join(real)}, which is the system clock: start the broker"
                " with --clock virtual",
                broker=real[0],
            )
        request = request_of(pb.AdvanceClockRequest, by_ms=by_ms)
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
