"""Methods of producers: SendMessage, EndTransaction, RecallMessage.

SendMessage stores a request completely or refuses it completely, with one status and no entries. The broker chooses the
queues, whatever queue a request names. Messages without a group go into one queue together, each group into its own:

    with a message group        the consistent hash of the group, as RocketMQ's proxy and PocketMQ's clients choose
    with a lite topic           the same of the lite topic, so that it keeps its order
    with a priority             the queue of this number, the last one for higher priorities
    everything else             each queue in turn

All requests of one turn of the loop are appended together. A message that the disk refuses after that, or that did not
reach the disk in time (MASTER_PERSISTENCE_TIMEOUT), gets an entry with only a status. The receipt of a scheduled
message has a recall handle. The trailing metadata `x-durable` says "memory" (the message survives a kill) or "disk".

EndTransaction and RecallMessage may be answered later by another part of the broker. Not thread-safe: the event loop
owns it. Source: v2-protocol.md §4.1, §4.7, §4.9; docs/differences-in-answers.md lists intended differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from ...proto.errors import (
    FlushTimeout,
    NotWritable,
    PocketMQError,
    TopicNotFound,
    TransactionNotFound,
)
from ...proto.errors_wire import ours
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.java_hash import consistent_bucket, java_hash
from ...proto.recall_handle import encode_handle
from ...proto.record import Host
from ...proto.rpc import LATER, Call, Later, MethodTable, RpcError
from ...proto.run import Run
from ...store.format.state_tables import TopicConfig
from ..config import BrokerConfig
from ..delay.recalls import Recalls
from ..messages.admission import ValidatedBatch, validate_encoded
from ..messages.send import Outcome, Sends
from ..other_brokers import OtherBrokers
from ..topics import Topics
from ..transactions.transactions import Transactions
from . import request_checks
from .messages import check_type, property_string, record_of, type_of_sent
from .request_checks import topic_name
from .service import client_id, service, unary
from .statuses import OK, Refused, status_of

DURABLE: Final = "x-durable"
_DURABLE: Final = {pb.MEMORY: "memory", pb.DISK: "disk", pb.REPLICAS: "replicas"}
#: Called with the client id, the topic and the transaction id of a half message.
Remember = Callable[[str, str, str], None]
#: Parses the address of a peer, with a cache.
_host_of: Final = lru_cache(4096)(Host.of_peer)
#: A recall handle consists of words, so a message id must not contain a space.
_SPACE: Final = " "
#: The reply for one stored message, without its own fields.
_STORED: Final = v2.SendMessageResponse(
    status=OK, entries=[v2.SendResultEntry(status=OK)]
).SerializeToString()
_FIRST: Final = (0,)
#: Messages of these types are not appended to their queue at once.
_WAITING: Final = frozenset((v2.DELAY, v2.TRANSACTION))
#: Limit of topics whose next queue is remembered; beyond it, all start again.
TURNS_MAX: Final = 100_000
#: Limit of groups whose queue is cached: nearly all messages are of recently used groups.
_GROUPS_KEPT: Final = 4096


class CheckedMessage(NamedTuple):
    """One message of a request: validated, with its queue."""

    message: v2.Message
    body: bytes
    properties: bytes
    kind: v2.MessageType
    queue: int


class SendMessages:
    """Serves SendMessage."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        sends: Sends,
        now_ms: Callable[[], int],
        remember: Remember,
    ) -> None:
        """NOW_MS returns the time of messages. REMEMBER records the clients of half messages, for checks."""
        self._config = config
        self._topics = topics
        self._sends = sends
        self._now_ms = now_ms
        self._queues = QueueChooser()
        self._remember = remember

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"SendMessage": unary(v2.SendMessageRequest, v2.SendMessageResponse, self.send)}
        )

    def send(self, request: v2.SendMessageRequest, call: Call) -> Later:
        """Store the messages of REQUEST; raise the error of an invalid one before any is stored."""
        messages = request.messages
        if not messages:
            raise Refused(
                v2.MESSAGE_CORRUPTED,
                "the request has no messages: add at least one",
                field="messages",
            )
        first = messages[0]
        topic = self._writable(topic_name(first.topic))
        alone = len(messages) == 1
        drafts = [self._draft(first, topic, None)] if alone else self._drafts(messages, topic)
        runs = _runs(drafts, topic.name, _host_of(call.peer), self._now_ms())
        receipt = _Receipt(call, drafts, topic.name, self._config.name, len(runs))
        self._sends.take([(run, receipt.outcome_of(rows)) for rows, run in runs])
        for draft in drafts:
            if draft.kind == v2.TRANSACTION:
                transaction_id = draft.message.system_properties.message_id
                self._remember(client_id(call), topic.name, transaction_id)
        return LATER

    def _writable(self, name: str) -> TopicConfig:
        """Return topic NAME, which must exist and be writable; sending does not create it here."""
        topic = self._topics.get(name)
        if not topic.write_queues:
            raise NotWritable(
                f"topic {name!r} has no queue to write: add write queues, or choose another topic",
                topic=name,
            )
        return self._topics.for_writing(name, 0)

    def _drafts(self, messages: Sequence[v2.Message], topic: TopicConfig) -> list[CheckedMessage]:
        """Return the validated MESSAGES of a request, all of one topic."""
        resource = messages[0].topic
        shared: int | None = None
        drafts = []
        for message in messages:
            if message.topic != resource:
                raise Refused(
                    v2.MESSAGE_CORRUPTED,
                    f"the messages are for several topics, {resource.name!r} and {message.topic.name[:64]!r}: use"
                    " one request per topic",
                    field="topic",
                    value=message.topic.name[:64],
                )
            draft = self._draft(message, topic, shared)
            if shared is None and draft.kind == v2.NORMAL:
                shared = draft.queue
            drafts.append(draft)
        return drafts

    def _draft(self, message: v2.Message, topic: TopicConfig, shared: int | None) -> CheckedMessage:
        """Return MESSAGE, validated. SHARED is the queue of messages that may go to any."""
        body, system = message.body, message.system_properties
        user = message.user_properties
        own = dict(user) if user else {}
        keys = list(system.keys)
        request_checks.check_message(
            message,
            body,
            own,
            keys,
            now_ms=self._now_ms(),
            delay_max_ms=self._config.v2_delay_max_ms,
        )
        kind = type_of_sent(system)
        if self._config.topic_message_type_check:
            check_type(topic, kind)
        properties = property_string(system, own, keys, topic=topic.name, kind=kind)
        queue = shared if shared is not None and kind == v2.NORMAL else None
        if queue is None:
            queue = self._queues.of(topic, system, kind)
        return CheckedMessage(message, body, properties, kind, queue)


def _runs(
    drafts: Sequence[CheckedMessage], topic: str, host: Host, now_ms: int
) -> list[tuple[Sequence[int], ValidatedBatch]]:
    """Return for each queue which of DRAFTS go there, and their batch; raise the error of an invalid one."""
    if len(drafts) == 1:
        return [(_FIRST, _run(drafts, topic, host, now_ms))]
    rows: dict[int, list[int]] = {}
    for row, draft in enumerate(drafts):
        rows.setdefault(draft.queue, []).append(row)
    return [
        (mine, _run([drafts[row] for row in mine], topic, host, now_ms)) for mine in rows.values()
    ]


def _run(drafts: Sequence[CheckedMessage], topic: str, host: Host, now_ms: int) -> ValidatedBatch:
    """Return DRAFTS, all for one queue, as a batch."""
    queue = drafts[0].queue
    records = [
        record_of(
            draft.message,
            draft.body,
            draft.properties,
            topic=topic,
            queue=queue,
            born_ms=now_ms,
            born_host=host,
        )
        for draft in drafts
    ]
    kinds = [draft.kind for draft in drafts]
    plain, normal = _WAITING.isdisjoint(kinds), kinds.count(v2.NORMAL) == len(kinds)
    sizes = [len(draft.properties) for draft in drafts]
    if host.is_v6:
        return validate_encoded(Run.of(topic, queue, records), plain=plain, normal=normal)
    run = Run.of_plain(topic, queue, records, sizes)
    return validate_encoded(run, plain=plain, normal=normal)


class _Receipt:
    """The reply to one CALL, about DRAFTS for TOPIC of BROKER, which were stored as so many RUNS."""

    __slots__ = (
        "_broker",
        "_call",
        "_drafts",
        "_durability",
        "_entries",
        "_error",
        "_left",
        "_topic",
    )

    def __init__(
        self, call: Call, drafts: Sequence[CheckedMessage], topic: str, broker: str, runs: int
    ) -> None:
        self._call = call
        self._drafts = drafts
        self._topic = topic
        self._broker = broker
        self._left = runs
        self._entries: dict[int, v2.SendResultEntry] = {}
        self._error: PocketMQError | None = None
        self._durability: pb.Durability = pb.MEMORY

    def outcome_of(self, rows: Sequence[int]) -> Outcome:
        """Return the callback for the result of the batch with the messages ROWS."""

        def outcome(reply: pb.ProduceReply, error: PocketMQError | None) -> None:
            if error is None and len(self._drafts) == 1:
                self._answer_one(reply)
                return
            if error is None:
                self._note(rows, reply)
            else:
                self._error = error
                status = status_of(error)
                self._entries.update((row, v2.SendResultEntry(status=status)) for row in rows)
            self._left -= 1
            if not self._left:
                self._answer()

        return outcome

    def _answer_one(self, reply: pb.ProduceReply) -> None:
        """Answer the only message, which was stored as in REPLY."""
        answer = v2.SendMessageResponse.FromString(_STORED)
        entry = answer.entries[0]
        entry.message_id = entry.transaction_id = self._id_of(0)
        entry.offset = reply.first_queue_offset
        if reply.due_ms:
            self._add_handle(entry, reply.due_ms[0])
        self._call.add_trailing(DURABLE, _DURABLE[reply.durability])
        self._call.reply(answer)

    def _note(self, rows: Sequence[int], reply: pb.ProduceReply) -> None:
        """Record that the messages ROWS were stored as in REPLY."""
        self._durability = reply.durability
        first, offsets, due_ms = reply.first_queue_offset, reply.queue_offsets, reply.due_ms
        for at, row in enumerate(rows):
            message_id = self._id_of(row)
            self._entries[row] = entry = v2.SendResultEntry(
                status=OK,
                message_id=message_id,
                transaction_id=message_id,
                offset=offsets[at] if offsets else first + at,
            )
            if due_ms:
                self._add_handle(entry, due_ms[at])

    def _id_of(self, row: int) -> str:
        return self._drafts[row].message.system_properties.message_id

    def _add_handle(self, entry: v2.SendResultEntry, due_ms: int) -> None:
        """Set the recall handle in ENTRY if its message waits until DUE_MS."""
        if due_ms and _SPACE not in entry.message_id:
            entry.recall_handle = encode_handle(self._topic, self._broker, due_ms, entry.message_id)

    def _answer(self) -> None:
        call, entries, error = self._call, self._entries, self._error
        if error is None:
            call.add_trailing(DURABLE, _DURABLE[self._durability])
            status = OK
        else:
            status = entries[0].status
            codes = {entry.status.code for entry in entries.values()}
            if len(codes) > 1:
                status = v2.Status(
                    code=v2.MULTIPLE_RESULTS,
                    message=f"some of {len(entries)} messages are not stored: see their entries",
                )
            elif not isinstance(error, FlushTimeout):
                call.reply(v2.SendMessageResponse(status=status))
                return
        in_order = [entries[row] for row in range(len(entries))]
        call.reply(v2.SendMessageResponse(status=status, entries=in_order))


# --- which queue a message goes to


class QueueChooser:
    """Chooses queues by the rules of the module."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def of(self, topic: TopicConfig, system: v2.SystemProperties, kind: v2.MessageType) -> int:
        """Return the queue for a message of KIND in TOPIC, which has at least one to write."""
        if kind != v2.NORMAL:
            if key := system.message_group or system.lite_topic:
                return queue_of_group(key, topic.write_queues)
            if kind == v2.PRIORITY:
                return min(system.priority, topic.write_queues - 1)
        return self.next_of(topic)

    def next_of(self, topic: TopicConfig) -> int:
        """Return the next queue of TOPIC in turn."""
        turn = self._turns.get(topic.name, -1) + 1
        if turn >= topic.write_queues:
            turn = 0
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[topic.name] = turn
        return turn


@lru_cache(_GROUPS_KEPT)
def queue_of_group(group: str, queues: int) -> int:
    """Return the queue for messages of GROUP, of so many QUEUES."""
    return consistent_bucket(java_hash(group), queues)


_RESOLUTIONS: Final[dict[v2.TransactionResolution, pb.Resolution]] = {
    v2.COMMIT: pb.COMMIT,
    v2.ROLLBACK: pb.ROLLBACK,
}


class AdaptedCall(Call):
    """CALL, answered with ANSWER_OF(reply). Errors become the status in a message of REPLY_TYPE."""

    __slots__ = ("_answer_of", "_call", "_reply_type")

    def __init__(
        self, call: Call, reply_type: type[Any], answer_of: Callable[[Any], Message]
    ) -> None:
        super().__init__()
        self.user = call.user
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


class EndTransactions:
    """Commits or rolls back a half message, for its producer or as the answer to a check.

    v2 has no producer groups: the topic takes their place, so that any client that sends to a topic can be asked about
    its transactions, and can end them. The same request again is answered OK; the opposite request, or one for an
    unknown transaction, is INVALID_TRANSACTION_ID.

    Clients in Go set no source (SOURCE_UNSPECIFIED), also in answers to checks: their requests count as answers, so
    that none is too late for a transaction with its own recovery duration. Clients in Rust call the broker that they
    are connected to: if it does not know the transaction, it asks the other brokers of the topic.
    """

    def __init__(
        self, topics: Topics, transactions: Transactions, other_brokers: OtherBrokers
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._other_brokers = other_brokers

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"EndTransaction": unary(v2.EndTransactionRequest, v2.EndTransactionResponse, self.end)}
        )

    def end(self, request: v2.EndTransactionRequest, call: Call) -> Any:
        """Commit or roll back; without a resolution, do nothing."""
        topic = topic_name(request.topic)
        transaction_id = request.transaction_id
        if not transaction_id.strip():
            raise Refused(
                v2.INVALID_TRANSACTION_ID,
                "transaction_id is blank: set it to that of the half message's receipt",
                field="transaction_id",
            )
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            return _ended()
        own = pb.EndTransactionRequest(
            group=topic,
            topic=topic,
            transaction_id=transaction_id,
            resolution=resolution,
            from_check=request.source != v2.SOURCE_CLIENT,
        )
        here = _LocalThenRemote(call, own, self._other_brokers)
        try:
            self._topics.get(topic)
            self._transactions.end(own, here)
        except (TopicNotFound, TransactionNotFound) as error:
            here.fail(error)
        return LATER


class _LocalThenRemote(AdaptedCall):
    """CALL, answered by this broker, or by one of its NEIGHBOURS if this one does not know the topic or transaction."""

    __slots__ = ("_other_brokers", "_request")

    def __init__(
        self, call: Call, request: pb.EndTransactionRequest, other_brokers: OtherBrokers
    ) -> None:
        super().__init__(call, v2.EndTransactionResponse, lambda _: _ended())
        self._request = request
        self._other_brokers = other_brokers

    def fail(self, error: RpcError) -> None:
        if isinstance(error, TopicNotFound | TransactionNotFound):
            elsewhere = AdaptedCall(self._call, v2.EndTransactionResponse, lambda _: _ended())
            self._other_brokers.forward_end(self._request, elsewhere, error)
        else:
            super().fail(error)


def _ended() -> v2.EndTransactionResponse:
    return v2.EndTransactionResponse(status=OK)


class RecallMessages:
    """Cancels a scheduled message before it is due, by the handle of its receipt.

    A second recall is answered OK again. A malformed handle, or one of another topic, is BAD_REQUEST. A message that
    was delivered, or never sent, is NOT_FOUND. Clients ask the broker that they are connected to, which asks the broker
    of the message.
    """

    def __init__(self, topics: Topics, recalls: Recalls, other_brokers: OtherBrokers) -> None:
        self._topics = topics
        self._recalls = recalls
        self._other_brokers = other_brokers

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"RecallMessage": unary(v2.RecallMessageRequest, v2.RecallMessageResponse, self.recall)}
        )

    def recall(self, request: v2.RecallMessageRequest, call: Call) -> Later:
        """Recall the message of a handle; the reply is sent when that is safe."""
        name = topic_name(request.topic)
        own = pb.RecallRequest(topic=name, handle=request.recall_handle)
        relayed = AdaptedCall(call, v2.RecallMessageResponse, _recalled)
        if self._other_brokers.forward_recall(own, relayed):
            return LATER
        check_type(self._topics.get(name), v2.DELAY)
        return self._recalls.recall(own, relayed)


def _recalled(reply: pb.RecallReply) -> v2.RecallMessageResponse:
    return v2.RecallMessageResponse(status=OK, message_id=reply.message_id)
