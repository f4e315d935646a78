"""A store is forked while messages come: the fork has all that was acknowledged before it began."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer
from pocketmq.store.config import StoreConfig

from .command import pocketmq
from .whole_broker import serving, store_config

pytestmark = pytest.mark.processes

_RUN = 100
#: Some log files of a mebibyte.
_LEAST = 5_000


class Filling:
    """A producer that sends runs of numbers until it is told to stop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_stopped = False
        self.acknowledged = 0
        self.enough = asyncio.Event()

    async def run(self) -> None:
        async with AsyncProducer(self._address) as producer:
            while not self._is_stopped:
                first = self.acknowledged
                bodies = [b"%d %s" % (first + at, bytes(400)) for at in range(_RUN)]
                await producer.send_many("orders", bodies)
                self.acknowledged += _RUN
                if self.acknowledged >= _LEAST:
                    self.enough.set()

    def stop(self) -> None:
        self._is_stopped = True


async def numbers_in(store: StoreConfig) -> list[int]:
    """Return the numbers of the messages in STORE as a broker serves it, in order."""
    found: list[int] = []
    async with serving(store) as (address, _):
        async with AsyncAdmin(address) as admin:
            end = (await admin.queue_offsets("orders"))[0].max_offset
        async with AsyncPullConsumer("counters", ["orders"], address) as reader:
            while len(found) < end:
                found += [int(one.body.split()[0]) for one in await reader.poll(60_000)]
    return found


@pytest.mark.long
async def test_a_fork_of_a_running_store_has_what_was_acknowledged_before(tmp_path: Path) -> None:
    source = store_config(tmp_path)
    async with serving(source) as (address, _):
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("orders", queues=1)
        filling = Filling(address)
        task = asyncio.create_task(filling.run())
        await filling.enough.wait()
        before_fork = filling.acknowledged
        done = await asyncio.to_thread(
            pocketmq, "fork", source.path, "--output", str(tmp_path / "fork")
        )
        assert done.code == 0, done
        filling.stop()
        await task
    (tmp_path / "forked").mkdir()
    (tmp_path / "fork").rename(tmp_path / "forked" / "store")

    found = await numbers_in(store_config(tmp_path / "forked"))
    assert found == list(range(len(found)))
    assert len(found) >= before_fork
