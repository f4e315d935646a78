"""The answers of a master: none is sent as the master's once another replica may be master.

The lease is enough for data that exists: it was confirmed, and stays. It is not enough for an answer that data is
missing. ZooKeeper may end a session early, and then another master may have stored the data while the lease still seems
to hold. After such an answer of a former master, an idempotent producer would begin a new epoch and store messages
twice, and a consumer would skip messages. So these answers wait until ZooKeeper has confirmed the session.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, Final

from google.protobuf.message import Message

from ...proto.errors import (
    AlreadyDelivered,
    GroupExists,
    GroupNotFound,
    MessageNotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PocketMQError,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
    TransactionResolved,
    UnknownProducer,
)
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, MethodTable, RpcError
from ...proto.rpc.methods import Method, MethodKind
from ..callbacks import ended
from .mastership import Told

#: Raises MasterFenced unless a call may be accepted, or an answer sent, in this turn of the event
#: loop.
Check = Callable[[], None]

#: Errors that report missing or conflicting state.
_STATE_ERRORS: Final = (
    AlreadyDelivered,
    GroupExists,
    GroupNotFound,
    MessageNotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
    TransactionResolved,
    UnknownProducer,
)
_STATE_ERROR_NAMES: Final = frozenset(error.__name__ for error in _STATE_ERRORS)
#: The same as codes for official clients.
_STATE_CODES: Final = frozenset(
    {
        v2.CONSUMER_GROUP_NOT_FOUND,
        v2.INVALID_TRANSACTION_ID,
        v2.NOT_FOUND,
        v2.OFFSET_NOT_FOUND,
        v2.TOPIC_NOT_FOUND,
    }
)


def _with_field(module: ModuleType, field: str, message: type[Message]) -> frozenset[type]:
    """Return the types of MODULE with a FIELD of type MESSAGE: asking a message for a field that it lacks is slow."""
    return frozenset(
        getattr(module, name)
        for name, descriptor in module.DESCRIPTOR.message_types_by_name.items()
        if field in descriptor.fields_by_name
        and descriptor.fields_by_name[field].message_type is message.DESCRIPTOR
    )


_WITH_ERROR: Final = _with_field(pb, "error", pb.Error)
_WITH_STATUS: Final = _with_field(v2, "status", v2.Status)


@dataclass(frozen=True, slots=True)
class MasterChecks:
    """How a broker checks that it is the master.

    OPEN is called when a call arrives, MASTER when an answer is sent, and STILL_MASTER (`Mastership.when_still_master`)
    before an answer that something is missing.
    """

    open: Check
    master: Check
    still_master: Callable[[Told], None]


def as_master(table: MethodTable, checks: MasterChecks, always: Container[str] = ()) -> MethodTable:
    """Return TABLE with handlers that answer only while the broker is the master. Paths in ALWAYS are not wrapped.

    A call is checked when it arrives and when it is answered, a stream at each message sent. A refused call fails with
    MasterFenced. So does one that would fail anyway: the next master may have the offset or topic that is missing here,
    and a client that gets "not found" would start over. A reply with an error of its own gets this error instead, and
    its stream continues.

    What says that something is missing waits for the metadata store: errors, and of unary methods also replies. Later
    replies on a stream may be sent before such an error. A status within a stream for official clients does not wait:
    they ask again, and never skip messages because of it.
    """
    return MethodTable(
        {
            method.path: method
            if method.path in always
            else replace(method, handler=_checked(method, checks))
            for method in table
        }
    )


def _checked(method: Method, checks: MasterChecks) -> Callable[..., Any]:
    handler = method.handler
    if method.kind is MethodKind.BIDI:
        return lambda stream: handler(_Checked(stream, checks))
    if iscoroutinefunction(handler):
        return _checked_coroutine(handler, checks)
    return _checked_function(handler, checks)


def _checked_coroutine(handler: Callable[..., Any], checks: MasterChecks) -> Callable[..., Any]:
    async def answer(request: Message, asked: Any) -> Any:
        checks.open()
        try:
            reply = await handler(request, _Checked(asked, checks))
        except PocketMQError as error:
            checks.master()
            if isinstance(error, _STATE_ERRORS):
                await ended(checks.still_master)
            raise
        if reply is not None:  # It is a unary method.
            checks.master()
            if _says_missing(reply):
                await ended(checks.still_master)
        return reply

    return answer


def _checked_function(handler: Callable[..., Any], checks: MasterChecks) -> Callable[..., Any]:
    def answer(request: Message, asked: Any) -> Any:
        checks.open()
        checked = _Checked(asked, checks)
        try:
            reply = handler(request, checked)
        except PocketMQError as error:
            checks.master()
            if not isinstance(error, _STATE_ERRORS):
                raise
            checked.fail(error)
            return LATER
        if not _says_missing(reply):
            return reply
        checked.reply(reply)
        return LATER

    return answer


def _says_missing(reply: Any) -> bool:
    """Return whether REPLY, of a unary method, reports that something is missing."""
    kind = type(reply)
    if kind is pb.GroupOffsetsReply:
        return any([one.offset < 0 for one in reply.offsets])
    if kind is pb.LeaseReply:
        # A consumer may skip messages of a queue in which its group has no offset.
        return any([one.token and one.committed < 0 for one in reply.queues])
    if kind is pb.LookupReply:
        return not reply.records and not reply.more
    return kind in _WITH_STATUS and reply.status.code in _STATE_CODES


class _Checked:
    """Wraps the call or stream ASKED; replies are checked before they are sent.

    After a refusal, a stream has ended: later messages on it are ignored.
    """

    __slots__ = ("_asked", "_checks", "_is_finished", "_is_refused", "_unsure")

    def __init__(self, asked: Any, checks: MasterChecks) -> None:
        self._asked = asked
        self._checks = checks
        self._is_refused = False
        #: Number of errors that wait for the metadata store; the normal end of the stream comes
        #: after them.
        self._unsure = 0
        self._is_finished = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)

    def reply(self, message: Message) -> None:
        if _says_missing(message):
            self._checks.still_master(partial(self._reply_missing, message))
        else:
            self._leave(message, self._asked.reply)

    def _reply_missing(self, message: Message, fenced: PocketMQError | None) -> None:
        if fenced is None:
            self._leave(message, self._asked.reply)
        else:
            self._asked.fail(fenced)

    def send(self, message: Any) -> None:
        if type(message) not in _WITH_ERROR or message.error.name not in _STATE_ERROR_NAMES:
            self._leave(message, self._asked.send)
            return
        kept = type(message)()
        kept.CopyFrom(message)  # The caller may reuse the message.
        self._unsure += 1
        self._checks.still_master(partial(self._send_error, kept))

    def _send_error(self, message: Any, fenced: PocketMQError | None) -> None:
        self._unsure -= 1
        if fenced is not None:
            message.error.CopyFrom(to_wire(fenced))
        self._leave(message, self._asked.send)
        if self._is_finished:
            self.finish()

    def finish(self) -> None:
        self._is_finished = True
        if not self._is_refused and not self._unsure:
            self._asked.finish()

    def fail(self, error: RpcError) -> None:
        if self._is_refused:
            return
        try:
            self._checks.master()
        except PocketMQError as fenced:
            error = fenced
        if isinstance(error, _STATE_ERRORS):
            self._is_refused = True
            self._checks.still_master(lambda fenced: self._asked.fail(fenced or error))
        else:
            self._asked.fail(error)

    def _leave(self, message: Message, leave: Callable[[Message], None]) -> None:
        if self._is_refused:
            return
        try:
            self._checks.master()
        except PocketMQError as error:
            own = getattr(message, "error", None)
            if own is None or not own.name:
                self._is_refused = True
                self._asked.fail(error)
                return
            own.CopyFrom(to_wire(error))
        leave(message)
