"""Links: the two ends of `Replication/Follow`, the stream between a follower and its master, and checks of its frames.

`FollowerLink` is the master's end. It sends the log in frames of up to 1 MiB, from its memory map. Up to
`UNACKNOWLEDGED_MAX` bytes may be unacknowledged. After `HEARTBEAT_MS` without data, or when the confirm offset has
moved, it sends an empty frame. New records are sent in the turn of the event loop that appends them. `CatchUp` slows
down followers that are out of sync, so that they do not delay acknowledgements.

`MasterLink` is the follower's end. It connects and passes frames on, up to `GATHERED_MAX` at once while its log is far
behind. While the replica is busy with its disk, it reads nothing.

Checks raise InvalidArgument with field, value and limit, and end the connection. The event loop owns everything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from ...proto.errors import MasterFenced, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import EOF, CallFailed, Channel, Stream, StreamCall
from ...store.message_store import MessageStore
from .frames import DATA_SIZE_MAX, FAR_BYTES, encoded_reply

FOLLOW_PATH: Final = "/pocketmq.v1.Replication/Follow"
HEARTBEAT_MS: Final = 500
UNACKNOWLEDGED_MAX: Final = 64 * 1_048_576
#: While the log grows, a follower that is not in sync is sent its growth plus this number of bytes
#: per second, …
CATCH_UP_BYTES: Final = 16 * 1_048_576
#: … in slices of this size, which take the master 1 ms. With half the size, a follower would have
#: twice the work.
SLICE_SIZE: Final = 512 * 1024
#: The log counts as growing for this time after an append.
GROWS_MS: Final = 200
#: Frames of a log that is far behind are passed on in groups: up to this number, …
GATHERED_MAX: Final = 4
#: … or what came in this time.
GATHER_S: Final = 0.01
#: Limit of bytes that wait for a follower's flow control window; then no more of the log is read.
_QUEUED_MAX: Final = 4 * 1_048_576
#: Limit of the credit of a follower that has not used it.
_DUE_MAX: Final = 4 * 1_048_576


class LinkUser(Protocol):
    """The replica, as its links use it."""

    def request_came(self, link: int, frame: pb.FollowRequest) -> Awaitable[None] | None:
        """A follower sent FRAME over LINK. What is returned holds back reading the next one."""
        ...

    def reply_came(
        self, link: int, frame: pb.FollowReply, more: Sequence[pb.FollowReply] = ()
    ) -> Awaitable[None] | None:
        """The master sent FRAME over LINK, followed by MORE bytes of the log. The result as in `request_came`."""
        ...

    def connected(self, master: int, link: int) -> None:
        """MASTER is connected over LINK."""
        ...

    def link_closed(self, link: int, reason: str) -> None:
        """LINK has ended; reason "": this side ended it."""
        ...


class MasterView(Protocol):
    """The master whose log a link sends."""

    @property
    def store(self) -> MessageStore: ...

    @property
    def epoch(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """The end of the log that followers may have."""
        ...

    @property
    def confirm(self) -> int: ...

    def now_ms(self) -> int: ...

    def waits_for(self, link: int) -> bool:
        """Return whether acknowledgements wait for the follower of LINK."""
        ...


class CatchUp:
    """Limits the bytes for a follower that is not in sync. The log ends at END at NOW_MS.

    While the log grows, the follower gets as many bytes as the log grows by, plus `CATCH_UP_BYTES` per second, in
    slices of `SLICE_SIZE`. So it catches up without slowing down sends much. When nothing was appended for `GROWS_MS`,
    it gets all that it can take.
    """

    def __init__(self, end: int, now_ms: int) -> None:
        self._end = end
        self._now_ms = now_ms
        self._grows_until_ms = now_ms
        #: Credit in thousandths of a byte; below 0: more was sent than was due.
        self._due = 0

    def wait_ms(self, end: int, now_ms: int) -> int | None:
        """Return after how many ms a slice may be sent, if the log ends at END at NOW_MS; None: everything may be sent.

        Call this before anything is sent.
        """
        grown, past_ms = end - self._end, now_ms - self._now_ms
        self._end, self._now_ms = end, now_ms
        if grown > 0:
            self._grows_until_ms = now_ms + GROWS_MS
        if now_ms >= self._grows_until_ms:
            self._due = 0
            return None
        # Limit the credit: otherwise it would all be sent at once.
        due = self._due + grown * 1000 + past_ms * CATCH_UP_BYTES
        self._due = min(due, _DUE_MAX * 1000)
        return max(0, -(self._due // CATCH_UP_BYTES))

    def sent(self, size: int) -> None:
        """Record that SIZE bytes were sent."""
        self._due -= size * 1000


class FollowerLink:
    """The master's end of link NUMBER; a `Receiver` of STREAM."""

    def __init__(self, number: int, stream: Stream, user: LinkUser, view: MasterView) -> None:
        self.number = number
        self._stream = stream
        self._user = user
        self._view = view
        self._loop = asyncio.get_running_loop()
        #: The next byte of the log to send; None: no log is sent.
        self._next: int | None = None
        self._acknowledged = 0
        self._confirm_sent = 0
        self._sent_ms = 0
        #: The scheduled sending of the next frame, in another turn or when credit is due.
        self._planned: asyncio.Handle | None = None
        self._catch_up = CatchUp(view.end_offset, view.now_ms())
        self._draining: asyncio.Task[None] | None = None
        self._is_closed = False

    def on_message(self, message: pb.FollowRequest) -> Awaitable[None] | None:
        if message.HasField("ack"):
            self._acknowledged = max(self._acknowledged, message.ack.written)
            self.go_on()
        return self._user.request_came(self.number, message)

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        was_closed = self._is_closed
        self._end()
        self._user.link_closed(self.number, "" if was_closed else "the follower is gone")

    def send(self, frame: pb.FollowRequest | pb.FollowReply) -> None:
        """Send FRAME."""
        self._stream.send(frame)

    def close(self, reason: str) -> None:
        """End the link, and send the follower the reason."""
        if not self._is_closed:
            self._end()
            self._stream.fail(MasterFenced(reason))

    def _end(self) -> None:
        self._is_closed = True
        self._next = None
        if self._draining is not None:
            self._draining.cancel()
        if self._planned is not None:
            self._planned.cancel()

    def stream_from(self, offset: int) -> None:
        """Send the log from OFFSET on."""
        self._next = self._acknowledged = offset
        self._beat()
        self.go_on()

    def go_on(self) -> None:
        """Send what may be sent: one frame now, and others after the other work of this turn."""
        if self._planned is None and self._next is not None and self._next < self._view.end_offset:
            is_idle = self._next == self._acknowledged
            self._send_next()
            if (
                is_idle
            ):  # A client waits only for these bytes; later ones are sent at the end of their turn.
                self._stream.write_now()

    def _send_next(self) -> None:
        self._planned = None
        at, end = self._next, self._view.end_offset
        if at is None or at >= end or at - self._acknowledged >= UNACKNOWLEDGED_MAX:
            return
        if self._stream.queued_bytes >= _QUEUED_MAX:
            if self._draining is None:
                self._draining = self._loop.create_task(self._drain())
            return
        wait_ms = self._catch_up.wait_ms(end, self._view.now_ms())
        size = DATA_SIZE_MAX
        if wait_ms is not None and not self._view.waits_for(self.number):
            if wait_ms:
                self._planned = self._loop.call_later(wait_ms / 1000, self._send_next)
                return
            size = SLICE_SIZE
        try:
            data = log_bytes(self._view.store, at, min(end, at + size))
        except PocketMQError as error:
            self.close(f"the log cannot be read at {at}: {error.message}")
            return
        if not data:
            self.close(
                f"the log does not have {at} any more: follow from {self._view.store.min_log_offset}"
            )
            return
        self._send_bytes(at, data)
        self._catch_up.sent(len(data))
        self._next = at + len(data)
        if self._next < end:
            self._planned = self._loop.call_soon(self._send_next)

    def _send_bytes(self, offset: int, data: bytes | memoryview) -> None:
        view = self._view
        self._confirm_sent = view.confirm
        self._sent_ms = view.now_ms()
        min_offset = view.store.min_log_offset
        self._stream.send_encoded(encoded_reply(view.epoch, offset, data, view.confirm, min_offset))

    async def _drain(self) -> None:
        await self._stream.drained()
        self._draining = None
        self.go_on()

    def tick(self) -> None:
        """Send a heartbeat if nothing was sent for long, or if the confirm offset has moved."""
        if self._next is None:
            return
        silent_ms = self._view.now_ms() - self._sent_ms
        if silent_ms >= HEARTBEAT_MS or self._view.confirm > self._confirm_sent:
            self._beat()
        self.go_on()

    def _beat(self) -> None:
        assert self._next is not None
        self._send_bytes(self._next, b"")


def log_bytes(store: MessageStore, offset: int, end: int) -> bytes | memoryview:
    """Return the bytes of STORE's log from OFFSET up to END, of one file and one frame; b"": they do not exist.

    The result is a view of the memory map: copy it in this turn, before the file may be deleted.
    """
    file = store.log.files.file_at(offset)
    if file is None:
        return b""
    at = offset - file.start
    return file.view[at : min(at + DATA_SIZE_MAX, file.size, end - file.start)]


class MasterLink:
    """The follower's end of link NUMBER to MASTER, over CHANNEL, which it closes at its end."""

    def __init__(self, number: int, master: int, channel: Channel, user: LinkUser) -> None:
        self.number = number
        self.master = master
        self._channel = channel
        self._user = user
        self._leaving: deque[pb.FollowRequest] = deque()
        self._news = asyncio.Event()
        #: The stream, while the master is connected.
        self._call: StreamCall | None = None
        #: Later frames wait for this.
        self._busy: Awaitable[None] | None = None
        #: Bytes of the log that are passed on with the following ones, or soon.
        self._gathered: list[pb.FollowReply] = []
        self._due: asyncio.TimerHandle | None = None
        #: Whether a frame waits for a flow control window.
        self._is_writing = False
        self._is_closed = False
        #: Done when the link has ended and the connection is closed.
        self.task = asyncio.get_running_loop().create_task(
            self._run(), name=f"follow replica {master}"
        )

    @property
    def is_open(self) -> bool:
        """Whether the master is connected."""
        return self._call is not None

    def send(self, frame: pb.FollowRequest | pb.FollowReply) -> None:
        """Send FRAME; an ack replaces an earlier one that is not sent yet."""
        assert isinstance(frame, pb.FollowRequest), "a follower sends requests"
        leaving = self._leaving
        if not leaving and self._leaves_now(frame):
            return
        if leaving and frame.HasField("ack") and leaving[-1].HasField("ack"):
            leaving.pop()
        leaving.append(frame)
        self._news.set()

    def _leaves_now(self, frame: pb.FollowRequest) -> bool:
        """Write FRAME in this turn, if possible, because sends wait for acks; return whether it was written."""
        if self._call is None or self._is_writing:
            return False
        try:
            return self._call.write_nowait(frame)
        except (CallFailed, asyncio.InvalidStateError):
            return False  # The reading task gets the reason.

    def close(self, reason: str) -> None:
        """End the link; the master sees the stream aborted."""
        self._is_closed = True
        self.task.cancel()

    async def _run(self) -> None:
        reason = ""
        try:
            reason = await self._talk()
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        finally:
            self._user.link_closed(self.number, "" if self._is_closed else reason)
            await self._channel.close()

    async def _talk(self) -> str:
        """Pass frames on until the stream ends; return the reason."""
        follow = self._channel.stream_stream(
            FOLLOW_PATH, pb.FollowRequest.SerializeToString, pb.FollowReply.FromString
        )
        call = follow()
        writing: asyncio.Task[None] | None = None
        try:
            await call.wait_for_connection()
            self._call = call
            writing = asyncio.get_running_loop().create_task(self._write(call))
            self._user.connected(self.master, self.number)
            call.deliver_to(self._came)
            while (frame := await call.read()) is not EOF:
                await self._free()
                self._came(frame)
                await self._free()
                call.deliver_to(self._came)
        except CallFailed as failure:
            return failure.details()
        finally:
            self._call = None
            call.cancel()
            if writing is not None:
                writing.cancel()
        return "the master ended the stream"

    def _came(self, frame: pb.FollowReply) -> None:
        """Pass FRAME on, mostly in the turn that receives it, because sends wait for its ack.

        If the replica then blocks, later frames are not read. While the follower is so far behind that no send waits
        for its acks, bytes are gathered: fewer, larger writes cost less.
        """
        if not frame.HasField("bytes"):
            self._hand_over()
        self._gathered.append(frame)
        is_far = frame.bytes.confirm - frame.bytes.offset > FAR_BYTES
        if not is_far or len(self._gathered) == GATHERED_MAX:
            self._hand_over()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(GATHER_S, self._hand_over)

    def _hand_over(self) -> None:
        """Pass the gathered bytes on, if there are any."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        gathered, self._gathered = self._gathered, []
        if not gathered or self._call is None or self._is_closed:
            return
        self._busy = self._user.reply_came(self.number, gathered[0], gathered[1:])
        if self._busy is not None:
            self._call.deliver_to(None)

    async def _free(self) -> None:
        """Wait until nothing blocks."""
        if self._busy is not None:
            await self._busy
            self._busy = None

    async def _write(self, call: StreamCall) -> None:
        while True:
            self._is_writing = True
            while self._leaving:
                try:
                    await call.write(self._leaving.popleft())
                except (CallFailed, asyncio.InvalidStateError):
                    return  # The reading task gets the reason.
            self._is_writing = False
            self._news.clear()
            await self._news.wait()


#: Dials "host:port".
Dial = Callable[[str], Channel]
