"""Calls that another part of the broker answers, in its own words or later; their callers hear it in those of v2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.errors_wire import ours
from ...proto.rpc import LATER, Call, Later, RpcError
from .statuses import status_of

#: Told None once something is safe, or the error.
Safe: TypeAlias = Callable[[PocketMQError | None], None]
Reply = TypeVar("Reply", bound=Message)


def answered_when(
    begin: Callable[[Safe], None], call: Call, answer: Callable[[PocketMQError | None], Reply]
) -> Reply | Later:
    """Return the ANSWER to what BEGIN tells; LATER if that is not at once: then CALL gets it."""
    told: list[PocketMQError | None] = []
    waits = False

    def tell(error: PocketMQError | None) -> None:
        told.append(error)
        if waits:
            call.reply(answer(error))

    begin(tell)
    if told:
        return answer(told[0])
    waits = True
    return LATER


class Relayed(Call):
    """CALL, answered by what ANSWER_OF makes of an answer; an error is the status in a message of REPLY_TYPE."""

    __slots__ = ("_answer_of", "_call", "_reply_type")

    def __init__(
        self, call: Call, reply_type: type[Any], answer_of: Callable[[Any], Message]
    ) -> None:
        super().__init__()
        self._call = call
        self._reply_type = reply_type
        self._answer_of = answer_of
        call.on_cancel(self.cancel)

    @property
    def peer(self) -> str:
        return self._call.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._call.metadata

    @property
    def deadline_ms(self) -> int | None:
        return self._call.deadline_ms

    def add_trailing(self, name: str, value: str) -> None:
        self._call.add_trailing(name, value)

    def reply(self, message: Message) -> None:
        self._call.reply(self._answer_of(message))

    def fail(self, error: RpcError) -> None:
        self._call.reply(self._reply_type(status=status_of(ours(error))))
