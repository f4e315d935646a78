"""What a master sends over a link, and when: a log that is only said to be there, on a loop whose time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from pocketmq.broker.replication.frames import DATA_SIZE_MAX, FAR_BYTES
from pocketmq.broker.replication.links import (
    CATCH_UP_BYTES,
    GATHER_S,
    GATHERED_MAX,
    GROWS_MS,
    SLICE_SIZE,
    FollowerLink,
    MasterLink,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...simulation.virtual_loop import run
from .log_frames import bytes_frame

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

    def send_encoded(self, pieces: Sequence[bytes]) -> None:
        size = len(pb.FollowReply.FromString(b"".join(pieces)).bytes.data)
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


class Master:
    """Is connected at once, and says what it is told to; a `Channel`, its `StreamCall` and a `LinkUser`."""

    def __init__(self) -> None:
        self.hear: Any = None
        #: Offsets of the frames that were handed over together, and when.
        self.came: list[tuple[int, list[int]]] = []
        self.link = MasterLink(1, 2, cast("Any", self), cast("Any", self))

    def stream_stream(self, *_: Any) -> Callable[[], Any]:
        return lambda: SimpleNamespace(
            wait_for_connection=lambda: asyncio.sleep(0),
            read=asyncio.get_running_loop().create_future,
            deliver_to=lambda take: setattr(self, "hear", take),
            cancel=lambda: None,
        )

    async def close(self) -> None:
        pass

    def connected(self, master: int, link: int) -> None:
        pass

    def link_closed(self, link: int, reason: str) -> None:
        pass

    def reply_came(self, link: int, frame: pb.FollowReply, more: Sequence[pb.FollowReply]) -> None:
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        self.came.append((now_ms, [one.bytes.offset for one in (frame, *more)]))

    def say(self, offset: int, behind: int) -> None:
        """Send a frame at OFFSET; what is confirmed is BEHIND it."""
        self.hear(pb.FollowReply(bytes=bytes_frame(1, offset, b"abcd", offset + behind)))


def following(tell: Callable[[Master], Any]) -> None:
    async def told() -> None:
        master = Master()
        await asyncio.sleep(0.001)
        await tell(master)
        master.link.close("")
        await asyncio.wait((master.link.task,))

    run(told())


def test_frames_of_a_log_that_is_far_behind_are_handed_over_together() -> None:
    async def tell(master: Master) -> None:
        for at in range(GATHERED_MAX + 1):
            master.say(at, FAR_BYTES + 1)
        assert [came for _, came in master.came] == [list(range(GATHERED_MAX))]
        master.say(GATHERED_MAX + 1, FAR_BYTES)
        assert [came for _, came in master.came[1:]] == [[GATHERED_MAX, GATHERED_MAX + 1]]

    following(tell)


def test_a_frame_of_a_log_that_is_far_behind_does_not_wait_long_and_a_near_one_not_at_all() -> None:
    async def tell(master: Master) -> None:
        begin_ms = round(asyncio.get_running_loop().time() * 1000)
        master.say(0, FAR_BYTES + 1)
        await asyncio.sleep(2 * GATHER_S)
        master.say(4, FAR_BYTES)
        assert master.came == [
            (begin_ms + round(GATHER_S * 1000), [0]),
            (begin_ms + round(2 * GATHER_S * 1000), [4]),
        ]

    following(tell)


def test_what_is_no_bytes_is_handed_over_behind_what_was_gathered() -> None:
    async def tell(master: Master) -> None:
        master.say(7, FAR_BYTES + 1)
        master.hear(pb.FollowReply(save=pb.FollowSave()))
        assert [came for _, came in master.came] == [[7], [0]]

    following(tell)
