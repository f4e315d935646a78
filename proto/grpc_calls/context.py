"""What calls and streams know of their request, read when a handler asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from ..deadlines import Deadline
from ..errors import PocketMQError
from ..http2.connection import Connection
from .answers import GOOD, good
from .held_answers import HeldAnswers
from .served import Served, ServedMethod

#: Headers that are about the transport; a handler has no use for them.
_OF_TRANSPORT: Final = frozenset(
    ("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding")
)


class Metadata(Mapping[str, str]):
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

    connection: Connection
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
        """Note how much of CALL is held now; raise Overloaded if that is too much in all."""
        ...

    def forget(self, call: Any) -> None:
        """Let go of CALL, which is over."""
        ...

    def too_late(self, path: str) -> PocketMQError:
        """Return how calls of PATH end whose time is over."""
        ...


class Asked(NamedTuple):
    """A call as its headers tell of it. DUE_MS: when its caller gives up, by the server's clock; None: never."""

    conversation: Peer
    stream_id: int
    method: ServedMethod
    headers: dict[str, str]
    due_ms: int | None


class RequestContext:
    """Mixed into call and stream: who asks, with which metadata, until when, and what is to follow a good answer."""

    __slots__ = ()
    _asked: Asked
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
        return Metadata(self._asked.headers)

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
