"""A store is forked and copied while messages come: each copy has all that was acknowledged before it began."""

from __future__ import annotations

import asyncio
import shutil
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


def names(file: Path, name: str) -> bool:
    try:
        return name in file.read_text()
    except FileNotFoundError:  # Not yet, or it is being replaced.
        return False


def copy(store: str, target: Path) -> None:
    """Copy as `cp -a` does, and again where a file was replaced meanwhile."""
    for _ in range(50):
        try:
            shutil.copytree(store, target)
            return
        except shutil.Error:
            shutil.rmtree(target, ignore_errors=True)
    raise AssertionError("files were replaced during each copy")


async def test_a_fork_and_a_copy_of_a_running_store_have_what_was_acknowledged_before(
    tmp_path: Path,
) -> None:
    source = store_config(tmp_path)
    async with serving(source) as (address, _):
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("orders", queues=1)
        topics = Path(source.path, "config", "topics.json")
        # Until then a copy of the folder may lack it.
        while not names(topics, "orders"):  # noqa: ASYNC110  (a file tells nobody)
            await asyncio.sleep(0.05)
        filling = Filling(address)
        task = asyncio.create_task(filling.run())
        await filling.enough.wait()
        before_fork = filling.acknowledged
        done = await asyncio.to_thread(
            pocketmq, "fork", source.path, "--to", str(tmp_path / "fork")
        )
        assert done.code == 0, done
        before_copy = filling.acknowledged
        await asyncio.to_thread(copy, source.path, tmp_path / "copy" / "store")
        filling.stop()
        await task
    (tmp_path / "forked").mkdir()
    (tmp_path / "fork").rename(tmp_path / "forked" / "store")

    for folder, before in (("forked", before_fork), ("copy", before_copy)):
        found = await numbers_in(store_config(tmp_path / folder))
        assert found == list(range(len(found))), folder
        assert len(found) >= before, folder
