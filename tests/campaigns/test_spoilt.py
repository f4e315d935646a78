"""A machine that is spoilt while a broker runs on it: what the broker, and whoever sends to it, sees of that."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, Message
from pocketmq.proto.errors import SendFailed

from ..served import ServerProcess
from .replica_set import PROGRAM
from .spoilt import Spoilt

SLOW_MS = 300
HOUR_MS = 3_600_000


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.campaign
async def test_a_disk_becomes_slow_and_full_and_a_clock_jumps_while_a_broker_runs(
    tmp_path: Path,
) -> None:
    machine = tmp_path / "machine"
    rule = ("--rule", "3 acknowledges by the smaller set")
    server = await asyncio.to_thread(
        ServerProcess, tmp_path / "store", program=("-c", PROGRAM, str(machine), *rule)
    )
    try:
        async with AsyncAdmin(server.nameserver) as admin:
            await admin.create_topic("T", queues=1)
        async with AsyncProducer(server.nameserver, acks="disk", retries=0) as producer:
            await producer.send(Message("T", b"sound"))

            Spoilt(sync_ms=SLOW_MS).write(machine)
            began = time.monotonic()
            slow = await producer.send(Message("T", b"slow"))
            assert time.monotonic() - began >= SLOW_MS / 1000

            Spoilt(clock_ms=HOUR_MS).write(machine)
            later = await producer.send(Message("T", b"later"))
            assert HOUR_MS <= later.store_timestamp_ms - slow.store_timestamp_ms < 2 * HOUR_MS

            Spoilt(full=True).write(machine)
            with pytest.raises(SendFailed, match="no space left"):
                await producer.send(Message("T", b"full"))

            Spoilt().write(machine)
            assert (await producer.send(Message("T", b"sound again"))).queue_offset == 3
    finally:
        await asyncio.to_thread(server.stop)
