"""Answers of a master: none leaves in a turn of the loop in which the broker may not answer as the master.

`as_master` wraps the handlers of a table, so that no handler has to know of it. A call is checked when it comes
(nothing new is taken while the office is handed over) and when it is answered, a stream whenever something is sent.
What is refused fails with MasterFenced. So does what would fail anyhow: what this broker lacks (an offset, a topic) the
next master may have, and who is told that it is nowhere would start over. A reply that has an error of its own gets
this one instead, and its stream goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.errors_wire import to_wire
from ...proto.rpc import MethodTable, RpcError
from ...proto.rpc.methods import Method, MethodKind

#: Raises MasterFenced unless a call may be taken, or an answer may leave, in this very turn.
Check = Callable[[], None]


def as_master(
    table: MethodTable, check_open: Check, check: Check, always: Container[str] = ()
) -> MethodTable:
    """Return TABLE with each call held against CHECK OPEN, each answer against CHECK, but for the paths that are served
    ALWAYS.
    """
    return MethodTable(
        {
            method.path: method
            if method.path in always
            else replace(method, handler=_checked(method, check_open, check))
            for method in table
        }
    )


def _checked(method: Method, check_open: Check, check: Check) -> Callable[..., Any]:
    handler = method.handler
    if method.kind is MethodKind.BIDI:
        return lambda stream: handler(_Checked(stream, check))
    if iscoroutinefunction(handler):

        async def answer_later(request: Message, asked: Any) -> Any:
            check_open()
            try:
                reply = await handler(request, _Checked(asked, check))
            except PocketMQError:
                check()
                raise
            if reply is not None:  # Of a unary method.
                check()
            return reply

        return answer_later

    def answer(request: Message, asked: Any) -> Any:
        check_open()
        try:
            return handler(request, _Checked(asked, check))
        except PocketMQError:
            check()
            raise

    return answer


class _Checked:
    """A call or stream, ASKED, with all that it has; what says that something is done is checked before it leaves.

    A stream on which something was refused is over, whatever else is said on it.
    """

    __slots__ = ("_asked", "_check", "_is_refused")

    def __init__(self, asked: Any, check: Check) -> None:
        self._asked = asked
        self._check = check
        self._is_refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)

    def reply(self, message: Message) -> None:
        self._leave(message, self._asked.reply)

    def send(self, message: Message) -> None:
        self._leave(message, self._asked.send)

    def finish(self) -> None:
        if not self._is_refused:
            self._asked.finish()

    def fail(self, error: RpcError) -> None:
        if self._is_refused:
            return
        try:
            self._check()
        except PocketMQError as fenced:
            error = fenced
        self._asked.fail(error)

    def _leave(self, message: Message, leave: Callable[[Message], None]) -> None:
        if self._is_refused:
            return
        try:
            self._check()
        except PocketMQError as error:
            own = getattr(message, "error", None)
            if own is None or not own.name:
                self._is_refused = True
                self._asked.fail(error)
                return
            own.CopyFrom(to_wire(error))
        leave(message)
