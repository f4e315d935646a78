"""What a master sends over a link, and when: a log that is only said to be there, on a loop whose time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from pocketmq.broker.replication.frames import DATA_SIZE_MAX
from pocketmq.broker.replication.links import (
    CATCH_UP_BYTES,
    GROWS_MS,
    SLICE_SIZE,
    FollowerLink,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...simulation.virtual_loop import run

MIB = 1_048_576


class Log:
    """A log of zeros, as the view that a link has of its master."""

    epoch, confirm = 1, 0

    def __init__(self, end: int) -> None:
        self.end_offset = end
        self.in_sync = False
        file = SimpleNamespace(start=0, size=1 << 40, view=Zeros())
        files = SimpleNamespace(file_at=lambda offset: file)
        self.store: Any = SimpleNamespace(log=SimpleNamespace(files=files), min_log_offset=0)

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def waits_for(self, link: int) -> bool:
        return self.in_sync


class Zeros:
    def __getitem__(self, place: slice) -> bytes:
        return bytes(place.stop - place.start)


class Follower:
    """Has what it is sent at once, and says so in the next turn; a `Stream` and a `LinkUser`."""

    queued_bytes = 0

    def __init__(self, log: Log) -> None:
        self.link = FollowerLink(1, cast("Any", self), cast("Any", self), log)
        #: How much came, when, frame by frame.
        self.frames: list[tuple[int, int]] = []
        self._log = log
        self.has = 0
        #: How much had been sent when it was to leave at once.
        self.written_now: list[int] = []

    def send(self, message: pb.FollowReply) -> None:
        size = len(message.bytes.data)
        if size:
            self.has += size
            self.frames.append((self._log.now_ms(), size))
            asyncio.get_running_loop().call_soon(self._acknowledge, self.has)

    def write_now(self) -> None:
        self.written_now.append(self.has)

    def _acknowledge(self, written: int) -> None:
        ack = pb.FollowAck(epoch=1, written=written)
        self.link.on_message(pb.FollowRequest(ack=ack))

    def request_came(self, link: int, frame: pb.FollowRequest) -> None:
        pass

    def link_closed(self, link: int, reason: str) -> None:
        pass

    def came(self, begin_ms: int, end_ms: int) -> int:
        """Return how much came from BEGIN_MS up to END_MS."""
        return sum(size for at_ms, size in self.frames if begin_ms <= at_ms < end_ms)


async def append(log: Log, follower: Follower, size: int, every_ms: int, times: int) -> None:
    """Append SIZE bytes EVERY_MS."""
    for _ in range(times):
        log.end_offset += size
        follower.link.go_on()
        await asyncio.sleep(every_ms / 1000)


def story(tell: Callable[[Log, Follower], Any], end: int) -> None:
    async def told() -> None:
        log = Log(end)
        follower = Follower(log)
        await tell(log, follower)
        follower.link.on_close()

    run(told())


def test_a_catch_up_beside_sends_is_sent_what_they_append_and_so_much_a_second_besides() -> None:
    async def tell(log: Log, follower: Follower) -> None:
        await append(log, follower, 1000, 5, 1)
        follower.link.stream_from(0)
        for size, every_ms in ((25_000, 1), (300, 3), (MIB, 20)):
            begin_ms, before = log.now_ms(), log.end_offset
            await append(log, follower, size, every_ms, 2_000 // every_ms)
            took_ms, grown = log.now_ms() - begin_ms, log.end_offset - before
            besides = follower.came(begin_ms, log.now_ms()) - grown
            due = CATCH_UP_BYTES * took_ms // 1000
            assert abs(besides - due) <= 2 * SLICE_SIZE, (size, besides, due)
        assert max(size for _, size in follower.frames) <= SLICE_SIZE
        assert follower.has < log.end_offset

    story(tell, 4096 * MIB)


def test_a_catch_up_comes_to_the_end_of_a_log_that_grows_and_stays_there() -> None:
    async def tell(log: Log, follower: Follower) -> None:
        follower.link.stream_from(0)
        await append(log, follower, 50_000, 1, 4_500)
        assert follower.has == log.end_offset
        last = len(follower.frames)
        await append(log, follower, 50_000, 1, 500)
        assert follower.has == log.end_offset
        assert [size for _, size in follower.frames[last:]] == [50_000] * 500

    story(tell, 64 * MIB)


def test_a_catch_up_takes_all_it_can_while_nothing_is_appended() -> None:
    async def tell(log: Log, follower: Follower) -> None:
        follower.link.stream_from(0)
        await asyncio.sleep(0.001)
        assert follower.has == 64 * MIB
        assert {size for _, size in follower.frames} == {DATA_SIZE_MAX}
        log.end_offset += 64 * MIB
        follower.link.go_on()
        await asyncio.sleep((GROWS_MS + 1) / 1000)
        assert 0 < follower.has - 64 * MIB < 16 * MIB
        follower.link.tick()
        await asyncio.sleep(0.1)
        follower.link.tick()
        await asyncio.sleep(0.001)
        assert follower.has == log.end_offset

    story(tell, 64 * MIB)


def test_who_is_in_sync_gets_all_that_is_appended_in_the_same_turn() -> None:
    async def tell(log: Log, follower: Follower) -> None:
        log.in_sync = True
        follower.link.stream_from(0)
        for size in (100, 300_000, 1, DATA_SIZE_MAX):
            log.end_offset += size
            follower.link.go_on()
            assert follower.has == log.end_offset

    story(tell, 0)


def test_what_follows_an_acknowledged_log_leaves_at_once_and_the_rest_with_its_turn() -> None:
    async def tell(log: Log, follower: Follower) -> None:
        log.in_sync = True
        follower.link.stream_from(0)
        for _ in range(3):
            log.end_offset += 100
            follower.link.go_on()
        await asyncio.sleep(0.001)
        log.end_offset += 100
        follower.link.go_on()
        assert follower.written_now == [100, 400]

    story(tell, 0)
