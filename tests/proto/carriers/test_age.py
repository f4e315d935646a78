"""Connections of an age: their peer is asked to come anew, and nobody who calls notices."""

from __future__ import annotations

import asyncio

from pocketmq.proto.rpc import Limits

from .calling import Caller
from .echo import REPLY, RUN
from .serving import Serving

AGES = Limits(connection_age_ms=100, connection_age_grace_ms=60_000)


async def port_of(caller: Caller) -> str:
    """Return the port that CALLER calls from."""
    reply = await caller.ask("Plain", RUN(topic="context"))
    return reply.store_host.split()[0].rpartition(":")[2]


async def test_calls_go_on_over_one_connection_after_the_other(serving: Serving) -> None:
    async with serving(AGES) as (_, caller), asyncio.timeout(60):
        ports: set[str] = set()
        while len(ports) < 4:
            ports |= set(await asyncio.gather(*[port_of(caller) for _ in range(10)]))


async def test_what_waits_is_answered_on_the_old_connection(serving: Serving) -> None:
    async with serving(AGES) as (echo, caller), asyncio.timeout(60):
        waiting = asyncio.ensure_future(caller.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        (call,) = echo.calls
        while await port_of(caller) == call.peer.rpartition(":")[2]:
            continue
        await port_of(caller)
        call.reply(REPLY(run_id=5))
        assert (await waiting).run_id == 5
        assert not call.cancelled
