"""Calls as a server has them: what each knows of its request; the one with a message each way, from head to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import Message

from .connection import ServerConnection
from .deadlines import Deadline
from .errors import RpcError, internal_error, not_read, shutting_down
from .methods import LATER, Call
from .protocol import GOOD, HEAD, PREFIX_BYTES, Inflation, MessageReader, good, not_one, with_prefix
from .served import HeldAnswers, Served, ServedMethod

#: Headers that are about the transport; a handler has no use for them.
_OF_TRANSPORT: Final = frozenset(
    ("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding")
)


class RequestMetadata(Mapping[str, str]):
    """The metadata among HEADERS, without what is binary or about the transport. Nothing is copied."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def __getitem__(self, name: str) -> str:
        if _is_hidden(name):
            raise KeyError(name)
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._headers if not _is_hidden(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_hidden(name: str) -> bool:
    return name.endswith("-bin") or name in _OF_TRANSPORT


class Peer(Protocol):
    """The connection of a call, as the call sees it. Its counters are those of all its calls."""

    connection: ServerConnection
    served: Served
    answers: HeldAnswers
    #: One message of the connection is inflated at a time.
    inflating: asyncio.Lock
    #: The caller's end of it.
    peer: str
    #: Has what was answered taken to the socket.
    touch: Callable[[], None]
    succeeded: int
    failed: int

    def complete(self, call: Any) -> None:
        """Note that the request of CALL is whole."""
        ...

    def gathered(self, call: Any) -> None:
        """Note how much of CALL is held now; raise ResourceExhausted if that is too much in all."""
        ...

    def forget(self, call: Any) -> None:
        """Let go of CALL, which is over."""
        ...

    def too_late(self, path: str) -> RpcError:
        """Return how calls of PATH end whose time is over."""
        ...


class RequestedCall(NamedTuple):
    """A call as its headers tell of it. DUE_MS: when its caller gives up, by the server's clock; None: never."""

    conversation: Peer
    stream_id: int
    method: ServedMethod
    headers: dict[str, str]
    due_ms: int | None


class RequestContext:
    """Mixed into call and stream: who asks, with which metadata, until when, and what is to follow a good answer."""

    __slots__ = ()
    _asked: RequestedCall
    _deadline: Deadline | None
    _trailing: list[tuple[str, str]]

    @property
    def stream_id(self) -> int:
        """The number of the stream that carries it."""
        return self._asked.stream_id

    @property
    def peer(self) -> str:
        return self._asked.conversation.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return RequestMetadata(self._asked.headers)

    @property
    def deadline_ms(self) -> int | None:
        due_ms = self._asked.due_ms
        return None if due_ms is None else max(0, due_ms - self._asked.conversation.served.now_ms())

    def add_trailing(self, name: str, value: str) -> None:
        self._trailing.append((name, value))

    def _begun_deadline(self, expire: Callable[[], None]) -> Deadline | None:
        """Have EXPIRE called when the caller gives up; return what cancels that."""
        due_ms = self._asked.due_ms
        deadlines = self._asked.conversation.served.deadlines
        return None if due_ms is None else deadlines.add(due_ms, expire)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _trailers(self) -> bytes:
        """Return what follows a good answer."""
        return good(self._trailing) if self._trailing else GOOD


class ServerUnaryCall(RequestContext, Call):
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

    def __init__(self, asked: RequestedCall, reader: MessageReader | None) -> None:
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
        except RpcError as error:
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
        except RpcError as error:
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
        except RpcError as error:
            self._settle_with(error)
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            self._settle_with(internal_error(method.path, bug))

    def _begin_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self._begun_deadline(self._expire)

    async def _run(self, request: Message) -> None:
        try:
            self.reply(await self._method.handler(request, self))
        except RpcError as error:
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

    def fail(self, error: RpcError) -> None:
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

    def _settle_with(self, error: RpcError) -> None:
        """Answer with ERROR."""
        conversation = self._conversation
        self._close()
        conversation.failed += 1
        conversation.connection.send_headers(
            self.stream_id, HEAD + conversation.served.failed(error), ends=True
        )
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

    def expire(self, error: RpcError) -> None:
        """Answer with ERROR, for the time is over, and have the handler know."""
        self._settle_with(error)
        self.cancel()
        self._end_task()

    def _expire(self) -> None:
        self.expire(self._conversation.too_late(self._method.path))

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
