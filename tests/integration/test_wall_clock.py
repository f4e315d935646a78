"""The wall clock of a server process is set while it serves: nothing that waits waits for it.

A `sitecustomize` in the server's process moves what its clocks show by what a file says, as an administrator, an NTP
correction or a laptop that slept would: no privilege and no compiler is needed.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import parse_consumer_offsets

from ..served import ServerProcess
from .whole_broker import Peer

pytestmark = pytest.mark.processes

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

#: Two signed numbers of nanoseconds: how far the wall clock was set, and how long the machine slept.
_SHIM = """
import mmap, os, struct, time

with open(os.environ["CLOCK_MOVED_BY"], "rb") as file:
    _moved = mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ)
_time_ns, _clock_gettime_ns = time.time_ns, time.clock_gettime_ns


def time_ns():
    return _time_ns() + sum(struct.unpack_from("=qq", _moved))


def clock_gettime_ns(clock):
    slept = struct.unpack_from("=qq", _moved)[1] if clock == time.CLOCK_BOOTTIME else 0
    return _clock_gettime_ns(clock) + slept


time.time_ns, time.time = time_ns, lambda: time_ns() / 1e9
time.clock_gettime_ns = clock_gettime_ns
"""


class Moved:
    """The file that moves a server's clocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(16))

    def by(self, *, wall_ms: int = 0, slept_ms: int = 0) -> None:
        data = struct.pack("=qq", wall_ms * 1_000_000, slept_ms * 1_000_000)
        with self._path.open("r+b", buffering=0) as file:
            file.write(data)


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(_SHIM, "utf-8")
    moved = Moved(tmp_path / "moved")
    monkeypatch.setenv("PYTHONPATH", str(shim), prepend=os.pathsep)
    monkeypatch.setenv("CLOCK_MOVED_BY", str(tmp_path / "moved"))
    return moved


@pytest.fixture
def server(moved: Moved, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "store") as server:
        yield server


async def _flushed_after_s(admin: AsyncAdmin) -> float:
    """Return how long it takes until all that was stored is on the device."""
    began = time.monotonic()

    async def is_flushed() -> bool:
        (broker,) = await admin.brokers()
        return broker.flushed_offset == broker.max_log_offset

    while not await is_flushed():
        assert time.monotonic() - began < 10, "not flushed"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _empty_poll_s(address: str) -> float:
    """Return how long a fetch of an empty queue takes that may wait for 2 s."""
    async with grpc.aio.insecure_channel(address) as channel:
        began = time.monotonic()
        reply = await Peer(channel).fetch_of(
            pb.FetchRequest(topic="empty", min_bytes=1, max_wait_ms=2_000)
        )
        assert not reply.HasField("error"), reply
        return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("step_ms", [-HOUR_MS, DAY_MS], ids=["an hour back", "a day on"])
async def test_what_waits_does_not_wait_for_a_wall_clock_that_was_set(
    server: ServerProcess, moved: Moved, tmp_path: Path, step_ms: int
) -> None:
    saved = tmp_path / "store" / "config" / "consumerOffset.json"
    nameserver = server.nameserver
    async with (
        AsyncAdmin(nameserver) as admin,
        AsyncProducer(nameserver) as producer,
        AsyncPullConsumer("readers", "orders", nameserver, start="earliest") as consumer,
    ):
        for topic in ("orders", "empty"):
            await admin.create_topic(topic, queues=1)
        await producer.send(Message("orders", b"before"))
        assert [message.body for message in await consumer.poll(timeout_ms=5_000)] == [b"before"]
        poll = asyncio.ensure_future(_empty_poll_s(server.ready["broker"]))

        moved.by(wall_ms=step_ms)
        await asyncio.sleep(1.2)  # The step is seen within a second.
        sent = time.monotonic()
        await producer.send(Message("orders", b"by level", delay_level=1))
        await producer.send(Message("orders", b"in a second", delay="1s"))
        assert await _flushed_after_s(admin) < 2
        arrived: dict[bytes, float] = {}
        while len(arrived) < 2:
            assert time.monotonic() - sent < 10, arrived
            for message in await consumer.poll(timeout_ms=1_000):
                arrived[message.body] = time.monotonic() - sent

        assert all(1 <= waited < 2 for waited in arrived.values()), arrived
        assert 1.9 < await poll < 3
        await consumer.commit()

        def is_saved() -> bool:
            return saved.exists() and parse_consumer_offsets(saved.read_text()).offsets == {
                "orders@readers": {0: 3}
            }

        while not is_saved():
            assert time.monotonic() - sent < 15, "the group's offsets are not saved"
            await asyncio.sleep(0.1)


async def test_what_fell_due_while_the_machine_slept_comes_when_it_wakes(
    server: ServerProcess, moved: Moved
) -> None:
    nameserver = server.nameserver
    async with AsyncAdmin(nameserver) as admin, AsyncProducer(nameserver) as producer:
        await admin.create_topic("orders", queues=1)
        await producer.send(Message("orders", b"late", delay="1h"))

        moved.by(slept_ms=HOUR_MS)

        async with AsyncPullConsumer("readers", "orders", nameserver, start="earliest") as consumer:
            messages = await consumer.poll(timeout_ms=5_000)
        assert [message.body for message in messages] == [b"late"]
