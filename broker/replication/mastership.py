"""What a broker asks of its replica while that is master in one epoch.

The replica passes a new `Mastership` to the broker for each epoch. All is called on the event loop, and nothing here
waits. A broker without replicas has no mastership.

    `check_master`        in the turn that answers anything: stored, read or committed must be answered as master
    `check_open`          when a request arrives: nothing new is taken during a transfer of leadership
    `check_acks`          before an append with acks="replicas"
    `appended`            in the turn of each append
    `when_acknowledged`   to answer acks="replicas"
    `on_confirm`          for long polls: the store's readers show only confirmed messages (`Reader.confirm`)
    `producers`           the table of idempotent producers, as the replica had it when it followed
    `on_end`              to be fenced in the very turn in which the epoch ends
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Protocol

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.errors_wire import to_wire
from ...proto.rpc import MethodTable, RpcError
from ...proto.rpc.methods import Method, MethodKind
from ..producers.producers import Producers
from .state_source import StatePart, StateSource

#: Called once: with the number of replicas that have it, and None; or with 0 and the reason.
Acknowledged = Callable[[int, PocketMQError | None], None]


class Mastership(Protocol):
    """What a broker asks of the replica that it serves for, while that is master in EPOCH."""

    @property
    def replica_id(self) -> int:
        """The number of the replica in its set, from 1 on."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch in which it is master, from 1 on."""
        ...

    @property
    def producers(self) -> Producers | None:
        """The idempotent producers in the log, for the broker to continue with; None: it must read them there."""
        ...

    @property
    def in_sync(self) -> int:
        """How many replicas are in sync, the master among them: for those who look at the broker."""
        ...

    def check_master(self) -> None:
        """Raise MasterFenced unless an answer may be given as master in this very turn: epoch and lease hold."""
        ...

    def check_open(self) -> None:
        """Raise MasterFenced unless a new request may be taken: `check_master`, and no transfer has started."""
        ...

    def check_acks(self, min_in_sync: int = 0) -> None:
        """Raise NotEnoughReplicas if too few are in sync for acks="replicas": fewer than the set's least, or the
        MIN_IN_SYNC that a topic has of its own. Asked before anything is stored."""
        ...

    def appended(self, end: int) -> None:
        """Note, in the turn of each append, that the log ends at END now, with a complete record."""
        ...

    def when_acknowledged(self, end: int, tell: Acknowledged) -> None:
        """Call TELL once all in sync have acknowledged the log before END. It may be called at once.

        Instead TELL may get NotEnoughReplicasAfterAppend or MasterFenced: another replica may be master by now. Waiters
        left at the end of the epoch need no call: the broker fails them itself.
        """
        ...

    def on_confirm(self, tell: Callable[[int], None]) -> None:
        """TELL, from now on, each time that the confirm offset has risen; the store's readers know it already."""
        ...

    def on_end(self, tell: Callable[[PocketMQError], None]) -> None:
        """TELL, once, that it is over, and why: the store is to be left alone from that turn on."""
        ...

    def replicate(self, parts: Iterable[StatePart], log_end: Callable[[], int]) -> StateSource:
        """Replicate PARTS, the broker's tables, from now on; LOG_END returns the end of its log.

        Return what reports when all in sync have something. No replica enters the in-sync set before this, nor without
        these tables.
        """
        ...


# ---------------------------------------------------------------- answers of a master


#: Raises MasterFenced unless a call may be taken, or an answer may leave, in this very turn.
Check = Callable[[], None]


def as_master(
    table: MethodTable, check_open: Check, check: Check, always: Container[str] = ()
) -> MethodTable:
    """Return TABLE with handlers that answer only while the broker is the master. Paths in ALWAYS are not wrapped.

    A call is checked by CHECK_OPEN when it arrives and by CHECK when it is answered, a stream at each message sent. A
    refused call fails with MasterFenced. So does one that would fail anyway: the next master may have the offset or
    topic that is missing here, and a client that gets "not found" would start over. A reply with an error of its own
    gets this error instead, and its stream continues.
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
