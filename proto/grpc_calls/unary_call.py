"""A call with one message each way."""

from __future__ import annotations

import asyncio

from google.protobuf.message import Message

from ..carrier_errors import internal_error, not_read, shutting_down
from ..deadlines import Deadline
from ..errors import PocketMQError
from ..rpc import LATER, Call
from .answers import HEAD, failed
from .context import Asked, RequestContext
from .inflation import Inflation
from .messages import PREFIX_BYTES, MessageReader, not_one, with_prefix


class UnaryCall(RequestContext, Call):
    """A call from its headers to its answer. Answers after that are dropped."""

    __slots__ = (
        "_answered",
        "_asked",
        "_conversation",
        "_deadline",
        "_message",
        "_method",
        "_reader",
        "_task",
        "_trailing",
    )

    def __init__(self, asked: Asked, reader: MessageReader | None) -> None:
        """READER: messages may be compressed; None: they are not."""
        super().__init__()
        self._asked = asked
        self._conversation = asked.conversation
        self._method = asked.method
        self._reader = reader
        self._message: bytes | Inflation | None = None
        self._deadline: Deadline | None = None
        self._trailing: list[tuple[str, str]] = []
        self._task: asyncio.Task[None] | None = None
        self._answered = False

    # --- the request

    def take(self, data: bytes, ended: bool) -> None:
        """Take a piece of the body; ENDED: the last."""
        if ended and self._reader is None and self._is_whole(data):
            self._conversation.complete(self)
            self._ask(data[PREFIX_BYTES:])
            return
        try:
            self._gather(data)
            if ended:
                self._conversation.complete(self)
                if self._message is None or self._is_half:
                    raise not_one("none")
                if isinstance(self._message, Inflation):
                    self._inflate(self._message)
                else:
                    self._ask(self._message)
        except PocketMQError as error:
            self._conversation.complete(self)
            self._settle_with(error)

    @property
    def held(self) -> int:
        """Bytes of the request that are there and not yet asked with."""
        waiting = len(self._message) if self._message is not None else 0
        return waiting if self._reader is None else waiting + self._reader.held

    @property
    def _is_half(self) -> bool:
        """Does the body end within a message?"""
        return self._reader is not None and self._reader.is_half

    def _is_whole(self, data: bytes) -> bool:
        """Is DATA, all of a body, one message that is not compressed?"""
        size = len(data) - PREFIX_BYTES
        return (
            0 <= size <= self._conversation.served.limits.receive_bytes_max
            and data[0] == 0
            and int.from_bytes(data[1:PREFIX_BYTES]) == size
        )

    def _gather(self, data: bytes) -> None:
        if self._reader is None:
            size_max = self._conversation.served.limits.receive_bytes_max
            self._reader = MessageReader(size_max, compressed=False)
        for message in self._reader.feed(data):
            if self._message is not None:
                raise not_one("more")
            self._message = message
        self._conversation.gathered(self)

    def _inflate(self, message: Inflation) -> None:
        """Ask with MESSAGE once it is inflated; until then it counts as what waits for its reader."""
        self._begin_deadline()
        self._conversation.gathered(self)
        self._task = self._conversation.served.spawn(self._ask_inflated(message))

    async def _ask_inflated(self, message: Inflation) -> None:
        served, conversation = self._conversation.served, self._conversation
        try:
            data = await served.inflater.inflate(message, conversation.inflating)
        except PocketMQError as error:
            self._settle_with(error)
        else:
            conversation.complete(self)
            self._ask(data)

    def _ask(self, data: bytes) -> None:
        method = self._method
        self._message = None
        try:
            request = method.decode(data)
            if method.is_coroutine:
                self._task = self._conversation.served.spawn(self._run(request))
                self._begin_deadline()
                return
            reply = method.handler(request, self)
            if reply is LATER:
                if not self._answered:
                    self._begin_deadline()
            else:
                self._settle(reply.SerializeToString())
        except PocketMQError as error:
            self._settle_with(error)
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            self._settle_with(internal_error(method.path, bug))

    def _begin_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self._begun_deadline(self._expire)

    async def _run(self, request: Message) -> None:
        try:
            self.reply(await self._method.handler(request, self))
        except PocketMQError as error:
            self._settle_with(error)
        except asyncio.CancelledError as cancelled:
            if self._answered or self.cancelled:
                raise
            self._settle_with(internal_error(self._method.path, cancelled))
        except Exception as bug:  # The edge: as in `_ask`.
            self._settle_with(internal_error(self._method.path, bug))

    # --- the answer

    def reply(self, message: Message) -> None:
        if self._is_open():
            self._settle(message.SerializeToString())

    def fail(self, error: PocketMQError) -> None:
        if self._is_open():
            self._settle_with(error)

    def _is_open(self) -> bool:
        """May it be answered? A second answer is a bug, but for the race with a stop or a caller that goes."""
        if self.cancelled:
            return False
        assert not self._answered, "a call is answered once"
        return True

    def _settle(self, data: bytes) -> None:
        """Answer well with the encoded message DATA."""
        conversation = self._conversation
        limit = conversation.served.limits.connection_queue_bytes_max
        if conversation.connection.queued > limit:
            self._settle_with(
                not_read(conversation.connection.queued, limit, "connection_queue_bytes_max")
            )
            return
        self._close()
        conversation.succeeded += 1
        conversation.connection.answer(self.stream_id, HEAD, with_prefix(data), self._trailers())
        conversation.touch()

    def _settle_with(self, error: PocketMQError) -> None:
        """Answer with ERROR."""
        conversation = self._conversation
        self._close()
        conversation.failed += 1
        conversation.connection.send_headers(self.stream_id, HEAD + failed(error), ends=True)
        conversation.touch()

    def _close(self) -> None:
        self._answered = True
        self._reader = self._message = None  # Now, not when cycles of references are looked for.
        self._no_deadline()
        self._conversation.forget(self)

    # --- its other ends

    def wind_down(self) -> None:
        """Go on: the answer may come within the grace."""

    def give_up(self) -> None:
        """Answer that the server stops; answers that still come are dropped."""
        self.cancel()
        self._end_task()
        self._settle_with(shutting_down())

    def break_off(self) -> None:
        """Let go: nobody waits for an answer any more."""
        self._close()
        self.cancel()
        self._end_task()

    def expire(self, error: PocketMQError) -> None:
        """Answer with ERROR, for the time is over, and have the handler know."""
        self._settle_with(error)
        self.cancel()
        self._end_task()

    def _expire(self) -> None:
        self.expire(self._conversation.too_late(self._method.path))

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
