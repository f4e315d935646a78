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
    """Can CLOCK be moved?"""
    return isinstance(clock, VirtualClock)


async def advance(clock: Clock, by: int | str) -> int:
    """Move CLOCK by BY, milliseconds or "2h30m"; return the new time once all that falls due until then has happened.

    Raises Unsupported where CLOCK moves by itself, InvalidArgument for a step that is none. A caller that is cancelled
    does not stop the move.
    """
    if not isinstance(clock, VirtualClock):
        raise Unsupported(
            "this broker lives by the machine's clock, which nobody moves: start it with --clock virtual"
        )
    by_ms = parse_duration(by, field="by") if isinstance(by, str) else by
    # A caller who gives up must not leave the clock somewhere on the way.
    await asyncio.shield(asyncio.ensure_future(clock.advance(by_ms)))
    return clock.unix_ms()


def methods(clock: Clock) -> MethodTable:
    """Return the table of the calls that tell and move CLOCK."""

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
