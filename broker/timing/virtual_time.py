"""The virtual clock of a broker: the calls that read and advance it."""

from __future__ import annotations

import asyncio
from typing import Final

from ...proto.clock import Clock, VirtualClock
from ...proto.errors import Unsupported
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Call, MethodTable, service, unary
from ...proto.time_text import parse_duration

_SERVICE: Final = "pocketmq.v1.Broker"


def is_virtual(clock: Clock) -> bool:
    """Return whether CLOCK can be moved."""
    return isinstance(clock, VirtualClock)


async def advance(clock: Clock, by: int | str) -> int:
    """Move CLOCK by BY, milliseconds or a duration such as "2h30m"; return the new time once all due events have
    happened.

    Raises Unsupported if CLOCK is the machine's, InvalidArgument if BY is not a duration. If the caller is cancelled,
    the move continues.
    """
    if not isinstance(clock, VirtualClock):
        raise Unsupported(
            "this broker uses the machine's clock, which cannot be moved: start it with --clock virtual"
        )
    by_ms = parse_duration(by, field="by") if isinstance(by, str) else by
    # If the caller is cancelled, the move must complete all the same.
    await asyncio.shield(asyncio.ensure_future(clock.advance(by_ms)))
    return clock.unix_ms()


def methods(clock: Clock) -> MethodTable:
    """Return the method table for reading and moving CLOCK."""

    def reply() -> pb.ClockReply:
        return pb.ClockReply(now_ms=clock.unix_ms(), virtual=is_virtual(clock))

    def now(request: pb.ClockRequest, call: Call) -> pb.ClockReply:
        return reply()

    async def move(request: pb.AdvanceClockRequest, call: Call) -> pb.ClockReply:
        await advance(clock, request.by_ms)
        return reply()

    return service(
        _SERVICE,
        {
            "Now": unary(pb.ClockRequest, pb.ClockReply, now),
            "AdvanceClock": unary(pb.AdvanceClockRequest, pb.ClockReply, move),
        },
    )
