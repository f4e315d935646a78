"""What calls and streams know of their request, read when a handler asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ..deadlines import Deadline

if TYPE_CHECKING:
    from .conversation import Conversation

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


class RequestContext:
    """Mixed into call and stream: who asks, with which metadata, until when."""

    __slots__ = ()
    _conversation: Conversation
    _headers: dict[str, str]
    _due_ms: int | None
    _deadline: Deadline | None

    @property
    def peer(self) -> str:
        return self._conversation.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return Metadata(self._headers)

    @property
    def deadline_ms(self) -> int | None:
        if self._due_ms is None:
            return None
        return max(0, self._due_ms - self._conversation.served.now_ms())

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
