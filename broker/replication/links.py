"""Links: the two ends of `Replication/Follow`, the stream between a follower and its master.

`FollowerLink` is the master's end: it hears what the follower says, and sends it the log from where it is told to, in
frames of up to a mebibyte, straight from the log's map. Several are in flight: as many as the windows of HTTP/2 take,
and at most `UNACKNOWLEDGED_MAX` bytes that the follower has not said it has. When there is nothing to send for
`HEARTBEAT_MS`, or the confirm offset has moved meanwhile, an empty frame says so.

`MasterLink` is the follower's end: it dials, and hands over frame by frame; while the replica is busy with its device
nothing is read. Of acks that wait to leave the latest is enough.

The event loop owns both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ...proto.errors import MasterFenced, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import EOF, CallFailed, Channel, Stream, StreamCall
from ...store.message_store import MessageStore
from .frames import DATA_SIZE_MAX, bytes_reply

FOLLOW_PATH: Final = "/pocketmq.v1.Replication/Follow"
HEARTBEAT_MS: Final = 500
UNACKNOWLEDGED_MAX: Final = 64 * 1_048_576
#: What may wait for a follower's window before nothing more is read from the log.
_QUEUED_MAX: Final = 4 * 1_048_576


class LinkUser(Protocol):
    """The replica, as its links see it."""

    def request_came(self, link: int, frame: pb.FollowRequest) -> Awaitable[None] | None:
        """A follower sent FRAME over LINK. What is returned holds back reading the next one."""
        ...

    def reply_came(self, link: int, frame: pb.FollowReply) -> Awaitable[None] | None:
        """The master sent FRAME over LINK; likewise."""
        ...

    def connected(self, master: int, link: int) -> None:
        """MASTER was reached: LINK."""
        ...

    def link_closed(self, link: int, reason: str) -> None:
        """LINK is over; "": this side ended it."""
        ...


class MasterView(Protocol):
    """What a link asks of the master whose log it sends."""

    @property
    def store(self) -> MessageStore: ...

    @property
    def epoch(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """Where the log ends, as far as followers may be sent it."""
        ...

    @property
    def confirm(self) -> int: ...

    def now_ms(self) -> int: ...


class FollowerLink:
    """The master's end of link NUMBER; a `Receiver` of STREAM."""

    def __init__(self, number: int, stream: Stream, user: LinkUser, view: MasterView) -> None:
        self.number = number
        self._stream = stream
        self._user = user
        self._view = view
        self._loop = asyncio.get_running_loop()
        #: The next byte of the log to send; None: nothing is sent.
        self._next: int | None = None
        self._acknowledged = 0
        self._confirm_sent = 0
        self._sent_ms = 0
        self._is_planned = False
        self._draining: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- what comes

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

    # --- what leaves

    def send(self, frame: pb.FollowRequest | pb.FollowReply) -> None:
        """Send FRAME."""
        self._stream.send(frame)

    def close(self, reason: str) -> None:
        """End it, and tell the follower why."""
        if not self._is_closed:
            self._end()
            self._stream.fail(MasterFenced(reason))

    def _end(self) -> None:
        self._is_closed = True
        self._next = None
        if self._draining is not None:
            self._draining.cancel()

    def stream_from(self, offset: int) -> None:
        """Send the log from OFFSET on."""
        self._next = self._acknowledged = offset
        self._beat()
        self.go_on()

    def go_on(self) -> None:
        """Send what there is, as far as it may be sent, once this turn of the loop is over."""
        if not self._is_planned and self._next is not None:
            self._is_planned = True
            self._loop.call_soon(self._send_next)

    def _send_next(self) -> None:
        """Send one frame: others on this loop have their turn before the next."""
        self._is_planned = False
        at, end = self._next, self._view.end_offset
        if at is None or at >= end or at - self._acknowledged >= UNACKNOWLEDGED_MAX:
            return
        if self._stream.queued_bytes >= _QUEUED_MAX:
            if self._draining is None:
                self._draining = self._loop.create_task(self._drain())
            return
        try:
            data = log_bytes(self._view.store, at, end)
        except PocketMQError as error:
            self.close(f"the log cannot be read at {at}: {error.message}")
            return
        if not data:
            self.close(
                f"the log does not have {at} any more: follow from {self._view.store.min_log_offset}"
            )
            return
        self._send_bytes(at, data)
        self._next = at + len(data)
        self.go_on()

    def _send_bytes(self, offset: int, data: bytes) -> None:
        view = self._view
        self._confirm_sent = view.confirm
        self._sent_ms = view.now_ms()
        min_offset = view.store.min_log_offset
        self._stream.send(bytes_reply(view.epoch, offset, data, view.confirm, min_offset))

    async def _drain(self) -> None:
        await self._stream.drained()
        self._draining = None
        self.go_on()

    def tick(self) -> None:
        """Say that the master is there, if nothing else did for long, or what is confirmed by now."""
        if self._next is None:
            return
        silent_ms = self._view.now_ms() - self._sent_ms
        if silent_ms >= HEARTBEAT_MS or self._view.confirm > self._confirm_sent:
            self._beat()
        self.go_on()

    def _beat(self) -> None:
        assert self._next is not None
        self._send_bytes(self._next, b"")


def log_bytes(store: MessageStore, offset: int, end: int) -> bytes:
    """Return what STORE's log has from OFFSET on, up to END, of one file and one frame; b"": it is not there."""
    file = store.log.files.file_at(offset)
    if file is None:
        return b""
    at = offset - file.start
    return bytes(file.view[at : min(at + DATA_SIZE_MAX, file.size, end - file.start)])


class MasterLink:
    """The follower's end of link NUMBER to MASTER, over CHANNEL, which it closes at its end."""

    def __init__(self, number: int, master: int, channel: Channel, user: LinkUser) -> None:
        self.number = number
        self.master = master
        self._channel = channel
        self._user = user
        self._leaving: deque[pb.FollowRequest] = deque()
        self._news = asyncio.Event()
        self._is_closed = False
        #: The master is connected.
        self.is_open = False
        #: Done when it is over, and the connection closed.
        self.task = asyncio.get_running_loop().create_task(
            self._run(), name=f"follow replica {master}"
        )

    def send(self, frame: pb.FollowRequest | pb.FollowReply) -> None:
        """Send FRAME; an ack takes the place of one that has not left."""
        assert isinstance(frame, pb.FollowRequest), "a follower asks"
        leaving = self._leaving
        if leaving and frame.HasField("ack") and leaving[-1].HasField("ack"):
            leaving.pop()
        leaving.append(frame)
        self._news.set()

    def close(self, reason: str) -> None:
        """End it; the master sees the stream broken off."""
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
        """Hand over what comes until the stream ends; return why it did."""
        follow = self._channel.stream_stream(
            FOLLOW_PATH, pb.FollowRequest.SerializeToString, pb.FollowReply.FromString
        )
        call = follow()
        writing: asyncio.Task[None] | None = None
        try:
            await call.wait_for_connection()
            self.is_open = True
            writing = asyncio.get_running_loop().create_task(self._write(call))
            self._user.connected(self.master, self.number)
            while (frame := await call.read()) is not EOF:
                busy = self._user.reply_came(self.number, frame)
                if busy is not None:
                    await busy
        except CallFailed as failure:
            return failure.details()
        finally:
            self.is_open = False
            call.cancel()
            if writing is not None:
                writing.cancel()
        return "the master ended the stream"

    async def _write(self, call: StreamCall) -> None:
        while True:
            while self._leaving:
                try:
                    await call.write(self._leaving.popleft())
                except (CallFailed, asyncio.InvalidStateError):
                    return  # Who reads hears why.
            self._news.clear()
            await self._news.wait()


#: Dials "host:port".
Dial = Callable[[str], Channel]
