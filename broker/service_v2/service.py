"""The methods of `apache.rocketmq.v2.MessagingService`, put together from the files that each serve some.

A handler is an ordinary one of `proto/rpc/methods.py`. `unary` wraps it, so that whatever goes wrong is a status in
the reply, and that a call without a client id is refused as the protocol has it.

A call that is refused ends well for gRPC: what came of it is `Status` in the body, because the clients take anything
else for a failure of transport and try again. The code of an error is that of its class, or of the nearest class above
it in the table; `Refused` brings its own. Source: apache.rocketmq.v2, enum Code.

`timed` wraps the handlers of a table, so that it is counted how long calls take, and what comes of them. Of a stream of
messages it is the time to its end, with the wait for messages; of Telemetry, which stays open, there is none. Names are
those of Apache's metrics: the method in small letters, "success" or the code in small letters. A call whose caller has
gone is not counted. Some 2 µs a call.

What each call of `apache.rocketmq.v2` needs, and how one that is refused is answered.

    SendMessage, RecallMessage, EndTransaction      Pub on the topic, of each message
    ReceiveMessage, AckMessage, QueryAssignment,    Sub on group and topic
    ForwardMessageToDeadLetterQueue, PullMessage,
    UpdateOffset, GetOffset; SyncLiteSubscription, if it names a topic
    QueryOffset                                     Sub on the topic: it names no group
    ChangeInvisibleDuration                         Sub on the group
    Heartbeat of a consumer                         Sub on the group
    NotifyClientTermination, if a group is named    Sub on the group
    QueryRoute                                      Pub or Sub on the topic
    Telemetry: settings                             a producer's Pub on each topic, a consumer's Sub on group and topics

So does Apache RocketMQ 5.5.0, but that it looks at the topic of the first message only, and at nothing of the calls
about pulling and offsets. A refusal is UNAUTHORIZED (40100), for want of a user or of a permission alike: in the
answer, or as the only message of a stream, which then ends.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from ...proto import errors, rpc
from ...proto.access.guard import Guard, OwnRefusal, Refusal, Rule, broker_rules, host_of
from ...proto.access.policies import PUB, SUB, Need, is_loopback, of_group, of_topic
from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, Method, MethodEntry, MethodTable, RpcError, Stream
from ...proto.rpc.methods import MethodKind
from ...proto.topics import check_new_group, check_new_topic
from ..metrics.traffic import TrafficCounts

logger = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CLIENT_ID: Final = "x-mq-client-id"
#: Says that a follower carried the call to the master, and for which host.
RELAYED: Final = "pocketmq-relayed"

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
#: Told None once something is safe, or the error.
Safe: TypeAlias = Callable[[PocketMQError | None], None]
_CODES: Final[dict[type[PocketMQError], v2.Code]] = {
    PocketMQError: v2.INTERNAL_SERVER_ERROR,
    errors.InvalidArgument: v2.BAD_REQUEST,
    errors.InvalidFilter: v2.ILLEGAL_FILTER_EXPRESSION,
    errors.InvalidDelay: v2.ILLEGAL_DELIVERY_TIME,
    errors.MessageTooLarge: v2.MESSAGE_BODY_TOO_LARGE,
    errors.TopicNotFound: v2.TOPIC_NOT_FOUND,
    errors.GroupNotFound: v2.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFound: v2.NOT_FOUND,
    errors.TooLate: v2.NOT_FOUND,
    errors.TransactionNotFound: v2.INVALID_TRANSACTION_ID,
    errors.TransactionResolved: v2.INVALID_TRANSACTION_ID,
    errors.InvalidReceiptHandle: v2.INVALID_RECEIPT_HANDLE,
    errors.QueueNotFound: v2.NOT_FOUND,
    errors.GroupInUse: v2.FORBIDDEN,
    errors.LeaseLost: v2.FORBIDDEN,
    errors.NotAuthenticated: v2.UNAUTHORIZED,
    errors.NotAuthorized: v2.UNAUTHORIZED,
    errors.NotReadable: v2.FORBIDDEN,
    errors.NotWritable: v2.FORBIDDEN,
    errors.Overloaded: v2.TOO_MANY_REQUESTS,
    errors.StoreFull: v2.TOO_MANY_REQUESTS,
    errors.FlushTimeout: v2.MASTER_PERSISTENCE_TIMEOUT,
    errors.NotEnoughReplicas: v2.HA_NOT_AVAILABLE,
    errors.NotEnoughReplicasAfterAppend: v2.SLAVE_PERSISTENCE_TIMEOUT,
    errors.MasterFenced: v2.HA_NOT_AVAILABLE,
    errors.OffsetOutOfRange: v2.ILLEGAL_OFFSET,
    errors.NotServed: v2.NOT_IMPLEMENTED,
}

#: Codes whose texts begin with their names, as Apache's do: there are programs that look for them in an error's text.
_NAMED: Final = frozenset(
    {v2.INVALID_RECEIPT_HANDLE, v2.MULTIPLE_RESULTS, v2.MASTER_PERSISTENCE_TIMEOUT}
)

_ILLEGAL: Final = {"topic": v2.ILLEGAL_TOPIC, "group": v2.ILLEGAL_CONSUMER_GROUP}
OK: Final = v2.Status(code=v2.OK, message="OK")


# --- methods


class ServedMethods(Protocol):
    """Serves some of the methods."""

    def methods(self) -> MethodTable: ...


class ServiceV2:
    """All methods that are served, each by one of FACES."""

    def __init__(
        self,
        faces: Sequence[ServedMethods],
        wrapped: Callable[[MethodTable], MethodTable] = lambda table: table,
    ) -> None:
        """WRAPPED returns a table with all that is done with every call."""
        self._faces = faces
        self._wrapped = wrapped

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        faces = (face.methods() for face in self._faces)
        return self._wrapped(reduce(or_, faces, MethodTable()))


def service(entries: Mapping[str, MethodEntry]) -> MethodTable:
    """Return the table of ENTRIES by method name."""
    return rpc.service(SERVICE, entries)


def client_id(call: rpc.CallContext) -> str:
    """Return the client that calls; raise Refused (CLIENT_ID_REQUIRED) for a call that does not say.

    Where there are users it is "user/id": nobody else's client is meant, whatever id a caller names.
    """
    found = call.metadata.get(CLIENT_ID, "")
    if not found.strip():
        raise Refused(
            v2.CLIENT_ID_REQUIRED,
            f"the metadata {CLIENT_ID} is missing or blank: every call names its client",
            field=CLIENT_ID,
        )
    user = call.user.name
    return f"{user}/{found}" if user else found


def client_host(call: rpc.CallContext) -> str:
    """Return where the client is that calls, "loopback" for this machine; "" where users tell clients apart.

    Of a call that a follower carried here, what the follower says.
    """
    if call.user.name:
        return ""
    host = call.metadata.get(RELAYED) or host_of(call.peer)
    return "loopback" if is_loopback(host) else host


def unary(
    request_type: type[Request],
    reply_type: type[Any],
    handler: Callable[[Request, Call], Any],
    *,
    anonymous: bool = False,
) -> MethodEntry:
    """Return the entry of a unary method whose errors become statuses; ANONYMOUS: callers need no client id.

    HANDLER returns its reply, or LATER and completes the call itself, errors included.
    """
    name = request_type.DESCRIPTOR.name

    def answer(request: Request, call: Call) -> Any | Later:
        try:
            if not anonymous:
                client_id(call)
            return handler(request, call)
        except PocketMQError as error:
            return reply_type(status=status_of(error))
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            return reply_type(status=status_of_bug(name, bug))

    return rpc.unary(request_type, reply_type, answer)


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


# --- errors as statuses


class Refused(InvalidArgument):
    """A request that breaks a rule which has a code of its own."""

    def __init__(self, code: v2.Code, message: str, **details: object) -> None:
        super().__init__(message, **details)
        self.code = code


def code_of(error: PocketMQError) -> v2.Code:
    """Return the code that tells a client of ERROR."""
    if isinstance(error, Refused):
        return error.code
    return _illegal_name(error) or next(
        _CODES[kind] for kind in type(error).__mro__ if kind in _CODES
    )


def _illegal_name(error: PocketMQError) -> v2.Code | None:
    """Return the code of a name that does not exist and could not be created; None for another error."""
    if isinstance(error, errors.InvalidName):
        return _ILLEGAL.get(str(error.details.get("field")))
    try:
        if isinstance(error, errors.TopicNotFound):
            check_new_topic(str(error.details.get("topic")))
        elif isinstance(error, errors.GroupNotFound):
            check_new_group(str(error.details.get("group")))
    except errors.InvalidName as reason:
        return _illegal_name(reason)
    return None


def status_of(error: PocketMQError) -> v2.Status:
    """Return ERROR as clients get it."""
    return status_with(code_of(error), error.message)


def status_with(code: v2.Code, text: str) -> v2.Status:
    """Return CODE with TEXT, behind the code's name where clients look for that."""
    return v2.Status(code=code, message=f"{v2.Code.Name(code)}: {text}" if code in _NAMED else text)


def status_of_bug(path: str, bug: Exception) -> v2.Status:
    """Log BUG, a fault in the handler of PATH, and tell nothing of the inside."""
    logger.error("handler failed method=%s", path, exc_info=bug)
    return v2.Status(
        code=v2.INTERNAL_SERVER_ERROR,
        message=f"internal error in {path}: the broker's log says more",
    )


# ---------------------------------------------------------------- how long calls take

_WORDS: Final = re.compile("(?<=[a-z])(?=[A-Z])")
_OUTCOMES: Final = {
    code: "success" if code == v2.OK else name.lower() for name, code in v2.Code.items()
}


def timed(table: MethodTable, traffic: TrafficCounts, now_ms: Callable[[], int]) -> MethodTable:
    """Return TABLE with its calls counted in TRAFFIC; NOW_MS is an instant of the machine's time."""
    return MethodTable(
        {
            method.path: method
            if method.kind is MethodKind.BIDI or not method.path.startswith(f"/{SERVICE}/")
            else replace(method, handler=_timed(method, traffic, now_ms))
            for method in table
        }
    )


def _timed(
    method: Method, traffic: TrafficCounts, now_ms: Callable[[], int]
) -> Callable[[Message, Any], Any]:
    handler = method.handler
    name = _WORDS.sub("_", method.path.rpartition("/")[2]).lower()
    streams = method.kind is MethodKind.SERVER_STREAM

    def answer(request: Message, asked: Any) -> Any:
        call = _Timed(asked, name, traffic, now_ms)
        reply = handler(request, call)
        if streams:
            call.waits = True
        elif reply is not LATER:
            call.answered(reply, failed=False)
        return reply

    return answer


class _Timed:
    """A call or stream, ASKED, with all that it has, of which the end is noted."""

    __slots__ = ("_asked", "_began_ms", "_code", "_name", "_now_ms", "_traffic", "waits")

    def __init__(
        self, asked: Any, name: str, traffic: TrafficCounts, now_ms: Callable[[], int]
    ) -> None:
        self._asked = asked
        self._name = name
        self._traffic = traffic
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._code: str | None = None
        #: Its handler has returned, and what it streams is still to come.
        self.waits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)

    def reply(self, message: Message) -> None:
        self._asked.reply(message)
        self.answered(message, failed=False)

    def send(self, message: Message) -> None:
        if self._code is None:
            self._code = _code_of(message)
        self._asked.send(message)

    def finish(self) -> None:
        self._asked.finish()
        self.answered(None, failed=False)

    def fail(self, error: RpcError) -> None:
        self._asked.fail(error)
        self.answered(None, failed=True)

    def answered(self, reply: Message | None, *, failed: bool) -> None:
        """Note that the call is over, with REPLY unless it was a stream."""
        if not self._asked.cancelled:
            code = (self._code or "") if reply is None else _code_of(reply)
            took_ms = self._now_ms() - self._began_ms
            self._traffic.answered(self._name, code, took_ms, waited=self.waits, failed=failed)


def _code_of(message: Any) -> str:
    return _OUTCOMES.get(message.status.code, "unknown")


# ---------------------------------------------------------------- what each call of `apache.rocketmq.v2` needs


_PRODUCER: Final = v2.PRODUCER
Needs = Iterable[Need]


def _route(request: v2.QueryRouteRequest) -> Needs:
    yield of_topic(request.topic.name, PUB | SUB)


def _send(request: v2.SendMessageRequest) -> Needs:
    for message in request.messages:
        yield of_topic(message.topic.name, PUB)


def _publish(request: v2.RecallMessageRequest | v2.EndTransactionRequest) -> Needs:
    yield of_topic(request.topic.name, PUB)


def _consume(request: v2.AckMessageRequest | v2.QueryAssignmentRequest) -> Needs:
    yield of_group(request.group.name)
    yield of_topic(request.topic.name, SUB)


def _consume_queue(request: v2.ReceiveMessageRequest | v2.PullMessageRequest) -> Needs:
    yield of_group(request.group.name)
    yield of_topic(request.message_queue.topic.name, SUB)


def _query_offset(request: v2.QueryOffsetRequest) -> Needs:
    yield of_topic(request.message_queue.topic.name, SUB)


def _group(request: v2.ChangeInvisibleDurationRequest) -> Needs:
    yield of_group(request.group.name)


def _named_group(request: v2.HeartbeatRequest | v2.NotifyClientTerminationRequest) -> Needs:
    if request.group.name:
        yield of_group(request.group.name)


def _heartbeat(request: v2.HeartbeatRequest) -> Needs:
    if request.client_type != _PRODUCER:
        yield from _named_group(request)


def _lite(request: v2.SyncLiteSubscriptionRequest) -> Needs:
    if request.lite_topic_set or request.topic.name or request.group.name:
        yield of_group(request.group.name)
        yield of_topic(request.topic.name, SUB)


def _telemetry(command: v2.TelemetryCommand) -> Needs:
    settings = command.settings
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        for topic in settings.publishing.topics:
            yield of_topic(topic.name, PUB)
    elif kind == "subscription":
        yield of_group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            yield of_topic(entry.topic.name, SUB)


_BY_METHOD: Final[dict[str, Rule]] = {
    "QueryRoute": _route,
    "Heartbeat": _heartbeat,
    "SendMessage": _send,
    "QueryAssignment": _consume,
    "ReceiveMessage": _consume_queue,
    "AckMessage": _consume,
    "ForwardMessageToDeadLetterQueue": _consume,
    "PullMessage": _consume_queue,
    "UpdateOffset": _consume_queue,
    "GetOffset": _consume_queue,
    "QueryOffset": _query_offset,
    "EndTransaction": _publish,
    "Telemetry": _telemetry,
    "NotifyClientTermination": _named_group,
    "ChangeInvisibleDuration": _group,
    "RecallMessage": _publish,
    "SyncLiteSubscription": _lite,
}
RULES: Final = {f"/{SERVICE}/{method}": rule for method, rule in _BY_METHOD.items()}


class OfficialRefusal(Refusal):
    """The status in the answer: of a stream it is the only message."""

    def unary(self, method: Method, error: PocketMQError) -> Message:
        reply: Any = method.reply_type
        answer: Message = reply(status=status_of(error))
        return answer

    def stream(self, method: Method, stream: Stream, error: PocketMQError) -> None:
        stream.send(self.unary(method, error))
        stream.finish()


def guarded(guard: Guard, table: MethodTable, cluster: str) -> MethodTable:
    """Return TABLE, all that a broker in CLUSTER serves, behind GUARD."""
    official = {method.path: method for method in table if method.path.startswith(f"/{SERVICE}/")}
    own = {method.path: method for method in table if method.path not in official}
    return guard.guarded(MethodTable(official), RULES, OfficialRefusal()) | guard.guarded(
        MethodTable(own), broker_rules(cluster), OwnRefusal()
    )
