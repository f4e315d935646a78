"""Telemetry: one long stream a client, settings in both directions, the broker's commands to it, and what an
administrator asks.

Every settings message is answered with what the client keeps to, and status OK. The first answer of a stream is sent
once more `_AGAIN_MS` later, because clients of Node.js look for it only when all their routes are there. Commands that
nobody has asked for are passed over.

Bad settings end the stream with INVALID_ARGUMENT, and so do those of a push consumer whose filter is malformed or not
that of the group (subscriptions.py). The reason for a filter is sent twice, since clients differ: as a status without a
command, which Node.js raises, and with the end of the stream, which Go raises and the others log. Simple consumers get
it in the answers to their receives, which all clients raise. A stream without a client id gets a status, and ends well.

The answer echoes the client's own settings, and sets what is the broker's to say:

    producer   three attempts, 10 ms to 1 s apart; the largest body; that types are checked
    consumer   from its group: orderly or not, attempts, and the back-off between them; batches of 32; polls of 20 s
    both       where the client's measurements go to

A group that does not exist counts as one with the defaults: it is made when it first receives. Clients of Node.js
understand an exponential back-off only.

Python's push consumers stop reading while nothing wants their measurements: what a client does not read is bounded by
`_QUEUED_BYTES_MAX`, beyond which it gets no commands, and at its next settings the end of the stream.

Commands go to clients whose users may see what is in them: a check asks for Pub on the topic at that moment, a message
to try for Sub.

Checks of transactions are commands too. The protocol knows no group of producers; the half message's group is its
topic. Whoever names the topic in his settings may be asked, and whoever has sent a transaction to it, settings or not;
those who have not are asked last, since they may be producers without a checker. Who sent a half message is remembered
for as many as may be open, 250 bytes each, and not over a restart.

An administrator asks one client over its stream:

    thread stacks   answered by clients in Java, Go, C++; those of Node.js answer something
    try a message   a push consumer hands it to its listener and says what came of it: Java and C++ do so
    reconnect       open the connections anew: Java, Go and Node.js do so, none says that it does

Answers are matched by a number and by who gives them. Who does not answer in time is a RequestTimeout.

Bounds: `_WAITING_MAX` questions wait at once, `_TIMEOUT_MAX_MS` each at most.

Source: v2-protocol §3.4, §3.5, §3.8, §4.7, §4.11; the recordings telemetry, server-command and transaction.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from itertools import count
from operator import or_
from typing import Final

from ...proto.access.listing import SeenNames
from ...proto.access.policies import PUB, SUB, Need, of_topic
from ...proto.clock import ahead_ms
from ...proto.errors import (
    GroupNotFound,
    InvalidArgument,
    MessageNotFound,
    NotAuthorized,
    Overloaded,
    RequestTimeout,
)
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, MethodTable, Stream, bidi, service as service_of, unary
from ...proto.topics import MESSAGE_SIZE_MAX
from ...store.config import StoreConfig
from ...store.format.state_tables import INT_MAX, GroupConfig
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..consumer_groups import Groups
from ..events import BrokerEvents
from ..pop.pops import BATCH_MAX
from ..retry_policies import announced_intervals_of, exponential_of
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import Topics
from ..transactions.checks import Listeners
from .client_session import ClientSession, CommandStream
from .heartbeats import LANGUAGE, Heartbeats
from .messages import INVISIBLE_MAX_MS, LITE_TOPIC_LENGTH_MAX, delivered, group_name, topic_name
from .receiving import POLLING_MOST_MS
from .routes import Reach
from .service import client_host, client_id, service
from .sessions import Sessions
from .statuses import OK, Refused, status_of
from .subscriptions import RefusedFilter, Subscriptions

logger = logging.getLogger(__name__)


_AGAIN_MS: Final = 1_500
_QUEUED_BYTES_MAX: Final = 256 * 1024
_ANSWERS: Final = frozenset({"thread_stack_trace", "verify_message_result"})
LITE_TOPICS_MAX: Final = 2_000
SETTINGS_BYTES_MAX: Final = 1024 * 1024
#: The attribute of a group that says how many light topics one client may have.
_LITE_QUOTA_ATTRIBUTE: Final = "lite.sub.client.quota"
_SEND_ATTEMPTS: Final = 3
_SEND_BACKOFF_MS: Final = (10, 1_000, 2.0)
#: For clients that do not understand a list; the broker has its own for what they hand back too soon.
_NODE_BACKOFF_MS: Final = (1_000, 7_200_000, 2.0)
_CONSUMERS: Final = frozenset(
    {
        v2.CLIENT_TYPE_UNSPECIFIED,
        v2.PUSH_CONSUMER,
        v2.SIMPLE_CONSUMER,
        v2.PULL_CONSUMER,
        v2.LITE_PUSH_CONSUMER,
        v2.LITE_SIMPLE_CONSUMER,
    }
)


class Telemetry:
    """The streams of all clients. MEASURED: they are to send what they measure to the broker."""

    def __init__(
        self,
        sessions: Sessions,
        subscriptions: Subscriptions,
        rules: SettingsRules,
        reach: Reach,
        timers: Timers,
        events: BrokerEvents,
        *,
        measured: bool,
    ) -> None:
        self.sessions = sessions
        self._subscriptions = subscriptions
        self._rules = rules
        self._reach = reach
        self.timers = timers
        self._measured = measured
        self.events = events

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service({"Telemetry": bidi(v2.TelemetryCommand, v2.TelemetryCommand, self.open)})

    def open(self, stream: Stream) -> TelemetryStream:
        """Take in a stream."""
        try:
            who = client_id(stream)
        except Refused as error:
            stream.send(v2.TelemetryCommand(status=status_of(error)))
            stream.finish()
            return TelemetryStream(stream, self, "", is_over=True)
        return TelemetryStream(stream, self, who)

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Keep SETTINGS for SESSION; raise InvalidArgument for bad ones, and filters unlike those of the group."""
        self._rules.check(settings)
        self._subscriptions.settle(session, settings)
        self.sessions.settle(session, settings)

    def answer(self, settings: v2.Settings) -> v2.TelemetryCommand:
        """Return what a client with SETTINGS is told."""
        measurements = self._reach.of_settings(settings.access_point) if self._measured else None
        return v2.TelemetryCommand(status=OK, settings=self._rules.answer(settings, measurements))


class TelemetryStream:
    """One stream of client WHO."""

    def __init__(
        self, stream: Stream, telemetry: Telemetry, who: str, *, is_over: bool = False
    ) -> None:
        self._stream = stream
        self._telemetry = telemetry
        self._who = who
        self._is_over = is_over
        self._session: ClientSession | None = None
        self._again: Timer | None = None
        self._has_answered = False

    def on_message(self, message: v2.TelemetryCommand) -> None:
        """Answer settings, pass on answers to commands."""
        if self._is_over:
            return
        host = client_host(self._stream)
        sessions = self._telemetry.sessions
        sessions.check_host(self._who, host)
        session = sessions.hear(self._who, self._stream.metadata.get(LANGUAGE, ""), host)
        what = message.WhichOneof("command")
        if what == "settings":
            try:
                self._take_settings(session, message.settings)
            except RefusedFilter as error:
                self.send(v2.TelemetryCommand(status=status_of(error)))
                raise
        elif what in _ANSWERS:
            for callback in self._telemetry.events.client_answered:
                callback(self._who, message)

    def _take_settings(self, session: ClientSession, settings: v2.Settings) -> None:
        self._telemetry.settle(session, settings)
        self._telemetry.sessions.connect(session, self, client_host(self._stream))
        self._session = session
        if not self.has_room:
            raise Overloaded(
                f"{self._stream.queued_bytes} bytes of this stream were not read, the limit is {_QUEUED_BYTES_MAX}:"
                " read what the broker sends",
                field="queued_bytes",
                limit=_QUEUED_BYTES_MAX,
                value=self._stream.queued_bytes,
            )
        self.send(self._telemetry.answer(settings))
        if not self._has_answered:
            self._has_answered = True
            self._again = self._telemetry.timers.after(_AGAIN_MS, self._answer_again)

    def _answer_again(self) -> None:
        session = self._session
        if session is not None and session.settings is not None and self.has_room:
            self.send(self._telemetry.answer(session.settings))

    @property
    def has_room(self) -> bool:
        """Does the client read what it is sent?"""
        return self._stream.queued_bytes < _QUEUED_BYTES_MAX

    def send(self, command: v2.TelemetryCommand) -> None:
        """Send COMMAND, unless the stream is over."""
        if not self._is_over:
            self._stream.send(command)

    def may(self, need: Need) -> bool:
        """May the client's user do what NEED says?"""
        return self._stream.user.may(self._stream, need)

    def end(self) -> None:
        """End the stream well."""
        if not self._is_over:
            self._let_go()
            self._stream.finish()

    def on_end(self) -> None:
        self.end()

    def on_close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        self._is_over = True
        if self._again is not None:
            self._telemetry.timers.cancel(self._again)
            self._again = None
        if self._session is not None:
            self._telemetry.sessions.disconnect(self._session, self)
            self._session = None


# --- checks of transactions


class CheckCommands:
    """Has the producers among SESSIONS asked, as LISTENERS. LIMIT: half messages whose senders are remembered."""

    def __init__(
        self, sessions: Sessions, listeners: Listeners, *, limit: Callable[[], int]
    ) -> None:
        self._sessions = sessions
        self._listeners = listeners
        self._limit = limit
        #: By transaction id.
        self._senders: OrderedDict[str, str] = OrderedDict()
        self._asked: dict[ClientSession, dict[str, _Asked]] = {}

    def remember(self, client_id: str, topic: str, transaction_id: str) -> None:
        """Know that CLIENT_ID sent the half message of TRANSACTION_ID for TOPIC."""
        self._senders[transaction_id] = client_id
        if len(self._senders) > self._limit():
            self._senders.popitem(last=False)
        session = self._sessions.find(client_id)
        if session is None:
            try:
                session = self._sessions.hear(client_id)
            except Overloaded:
                return  # Its message is as good as any; others of the topic may answer for it.
        asked = self._asked_of(session, v2.Resource(name=topic))
        asked.has_sent = True

    def sender(self, transaction_id: str) -> str | None:
        """Return who sent the half message of TRANSACTION_ID, if that is known."""
        return self._senders.get(transaction_id)

    def settled(self, session: ClientSession) -> None:
        """Have SESSION asked about the topics of its settings, and about those that it has sent to."""
        settings = session.settings
        named = settings.publishing.topics if settings is not None else ()
        topics = {topic.name for topic in named}
        for asked in list(self._asked.get(session, {}).values()):
            if asked.group not in topics and not asked.has_sent:
                self._drop(session, asked)
        for topic in named:
            self._asked_of(session, topic).topic = topic

    def _asked_of(self, session: ClientSession, topic: v2.Resource) -> _Asked:
        of_session = self._asked.setdefault(session, {})
        asked = of_session.get(topic.name)
        if asked is None:
            asked = of_session[topic.name] = _Asked(self, session, topic)
            self._listeners.add(asked)
        return asked

    def _drop(self, session: ClientSession, asked: _Asked) -> None:
        del self._asked[session][asked.group]
        self._listeners.remove(asked)

    def ended(self, session: ClientSession) -> None:
        """Forget SESSION, which is over."""
        for asked in self._asked.pop(session, {}).values():
            self._listeners.remove(asked)


class _Asked:
    """One client and one topic. TOPIC is the resource as the client names it: it knows no other."""

    def __init__(self, commands: CheckCommands, session: ClientSession, topic: v2.Resource) -> None:
        self._commands = commands
        self._session = session
        self.topic = topic
        #: Has it sent a transaction?
        self.has_sent = False

    @property
    def group(self) -> str:
        return self.topic.name

    @property
    def has_room(self) -> bool:
        stream = self._session.stream
        return stream is not None and stream.has_room

    def may_see(self, topic: str) -> bool:
        stream = self._session.stream
        return stream is not None and stream.may(of_topic(topic, PUB))

    def is_for(self, topic: str) -> bool:
        return self.has_sent

    def sent(self, transaction_id: str) -> bool:
        return self._commands.sender(transaction_id) == self._session.client_id

    def send(self, check: pb.TransactionCheck) -> None:
        stream = self._session.stream
        if stream is None:
            return
        message = delivered(check.record, self.topic, attempt=1)
        stream.send(
            v2.TelemetryCommand(
                recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=check.transaction_id
                )
            )
        )


# --- settings


class SettingsRules:
    """What settings are checked and answered by. RETRY_DELAYS_MS: of groups without a policy of their own.

    CHECKS_TYPES: are messages refused that are not of their topic's type?
    """

    def __init__(
        self, groups: Groups, retry_delays_ms: Sequence[int], *, checks_types: bool
    ) -> None:
        self._groups = groups
        self._checks_types = checks_types
        self._retry_delays_ms = retry_delays_ms

    def check(self, settings: v2.Settings) -> None:
        """Raise InvalidArgument for SETTINGS that no client may have."""
        size = settings.ByteSize()
        if size > SETTINGS_BYTES_MAX:
            raise InvalidArgument(
                f"settings of {size} bytes, the limit is {SETTINGS_BYTES_MAX}: name fewer topics",
                field="settings",
                limit=SETTINGS_BYTES_MAX,
                value=size,
            )
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise InvalidArgument(
                "settings with neither publishing nor subscription: say which of them the client does",
                field="settings",
            )
        is_producer = kind == "publishing"
        if settings.client_type not in (
            (v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER) if is_producer else _CONSUMERS
        ):
            raise InvalidArgument(
                f"client_type is {_type_name(settings.client_type)}, but the settings are those of a"
                f" {'producer' if is_producer else 'consumer'}: send the ones of its type",
                field="client_type",
                value=_type_name(settings.client_type),
            )
        if is_producer:
            for topic in settings.publishing.topics:
                topic_name(topic)
        else:
            group_name(settings.subscription.group, self._groups)
            for entry in settings.subscription.subscriptions:
                topic_name(entry.topic)

    def answer(self, settings: v2.Settings, measurements: v2.Endpoints | None) -> v2.Settings:
        """Return what a client with SETTINGS keeps to; MEASUREMENTS: where it sends some, None if it does not."""
        answer = v2.Settings()
        answer.CopyFrom(settings)
        if settings.HasField("publishing"):
            self._answer_producer(answer)
        else:
            self._answer_consumer(answer)
        answer.metric.CopyFrom(
            v2.Metric(on=False)
            if measurements is None
            else v2.Metric(on=True, endpoints=measurements)
        )
        return answer

    def _answer_producer(self, answer: v2.Settings) -> None:
        publishing = answer.publishing
        publishing.max_body_size = MESSAGE_SIZE_MAX
        publishing.validate_message_type = self._checks_types
        answer.backoff_policy.CopyFrom(
            v2.RetryPolicy(
                max_attempts=_SEND_ATTEMPTS, exponential_backoff=_backoff(*_SEND_BACKOFF_MS)
            )
        )

    def _answer_consumer(self, answer: v2.Settings) -> None:
        group = self._group(answer.subscription.group.name)
        subscription = answer.subscription
        subscription.fifo = group.consume_message_orderly
        subscription.receive_batch_size = BATCH_MAX
        subscription.long_polling_timeout.FromMilliseconds(POLLING_MOST_MS)
        subscription.lite_subscription_quota = _lite_quota(group)
        subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX
        policy = v2.RetryPolicy(max_attempts=min(max(group.retry_times_max, 0) + 1, INT_MAX))
        growing = exponential_of(group.retry_policy)
        if growing is not None:
            initial, longest, multiplier = growing
            policy.exponential_backoff.CopyFrom(
                _backoff(min(initial, INVISIBLE_MAX_MS), min(longest, INVISIBLE_MAX_MS), multiplier)
            )
        elif answer.user_agent.language == v2.NODE_JS:
            policy.exponential_backoff.CopyFrom(_backoff(*_NODE_BACKOFF_MS))
        else:
            delays = announced_intervals_of(group.retry_policy) or self._retry_delays_ms
            policy.customized_backoff.CopyFrom(
                v2.CustomizedBackoff(
                    next=[timedelta(milliseconds=min(one, INVISIBLE_MAX_MS)) for one in delays]
                )
            )
        answer.backoff_policy.CopyFrom(policy)

    def _group(self, name: str) -> GroupConfig:
        try:
            return self._groups.get(name)
        except GroupNotFound:
            return GroupConfig(name=name)


def _type_name(client_type: int) -> str:
    known = client_type in v2.ClientType.values()
    return v2.ClientType.Name(client_type) if known else str(client_type)


def _lite_quota(group: GroupConfig) -> int:
    quota = group.attributes.get(_LITE_QUOTA_ATTRIBUTE, "")
    return int(quota) if quota.isdecimal() and len(quota) < 10 else LITE_TOPICS_MAX


def _backoff(initial_ms: int, longest_ms: int, multiplier: float) -> v2.ExponentialBackoff:
    return v2.ExponentialBackoff(
        initial=timedelta(milliseconds=initial_ms),
        max=timedelta(milliseconds=longest_ms),
        multiplier=multiplier,
    )


# --- all that knows clients


class Clients:
    """Streams and heartbeats of all clients. TIMERS turn by the machine's time; OWN: the broker's address, and those of
    its replicas behind it.

    LISTENERS get the producers among them, who are asked about transactions.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        groups: Groups,
        timers: Timers,
        own: Callable[[], Sequence[str]],
        listeners: Listeners,
        events: BrokerEvents,
    ) -> None:
        #: Where they are told to connect to.
        self.reach = Reach(config.v2_endpoints, own)
        self.sessions = Sessions(timers, limit=lambda: config.clients_max, events=events)
        rules = SettingsRules(
            groups, store_config.delay_levels_ms, checks_types=config.topic_message_type_check
        )
        self.subscriptions = Subscriptions(config, groups, self.sessions, timers)
        self.telemetry = Telemetry(
            self.sessions,
            self.subscriptions,
            rules,
            self.reach,
            timers,
            events,
            measured=config.client_metrics,
        )
        self._heartbeats = Heartbeats(self.sessions, groups)
        self.checks = CheckCommands(
            self.sessions, listeners, limit=lambda: config.transactions_open_max
        )
        events.connect(
            BrokerEvents(
                client_gone=[self.subscriptions.forget],
                client_settings_changed=[self.checks.settled],
                client_session_ended=[self.checks.ended],
            )
        )

    def start(self) -> None:
        """Begin to look for clients that are gone."""
        self.sessions.start()
        self.subscriptions.start()

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        faces = (self.telemetry, self._heartbeats)
        return reduce(or_, (face.methods() for face in faces))


_WAITING_MAX: Final = 1_000
_TIMEOUT_MS: Final = 3_000
_TIMEOUT_MAX_MS: Final = 60_000
_TOPICS_SHOWN: Final = 100


@dataclass(slots=True, eq=False)
class _Question:
    client_id: str
    call: Call
    timer: Timer


class Diagnostics:
    """Asks the clients of SESSIONS. TIMERS turn by the machine's time."""

    def __init__(
        self, sessions: Sessions, topics: Topics, store: MessageStore, timers: Timers
    ) -> None:
        self._sessions = sessions
        self._topics = topics
        self._store = store
        self._timers = timers
        self._numbers = count(1)
        #: By nonce.
        self._waiting: dict[str, _Question] = {}

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service_of(
            "pocketmq.v1.Broker",
            {
                "ListClients": unary(pb.ClientListRequest, pb.ClientListReply, self.list),
                "AskClient": unary(pb.AskClientRequest, pb.AskClientReply, self.ask),
            },
        )

    def list(self, request: pb.ClientListRequest, call: Call) -> pb.ClientListReply:
        """Answer who is connected, without topics and groups that the user may not see."""
        seen = SeenNames(call)
        sessions = sorted(self._sessions, key=lambda session: session.client_id)
        ahead = ahead_ms(self._timers)
        return pb.ClientListReply(
            clients=[_described(session, ahead, seen) for session in sessions]
        )

    def ask(self, request: pb.AskClientRequest, call: Call) -> pb.AskClientReply | Later:
        """Ask a client, and pass on what it says."""
        what = request.WhichOneof("what")
        if what is None:
            raise InvalidArgument(
                "what is not set: ask for thread_stacks, try_message or reconnect", field="what"
            )
        stream = self._stream(request.client_id)
        place = request.try_message
        if what == "try_message" and not stream.may(of_topic(place.topic, SUB)):
            raise NotAuthorized(
                f"client {request.client_id[:255]!r}: its user may not read topic {place.topic[:255]!r}, so it is not"
                " given a message of it",
                resource=f"Topic:{place.topic[:255]}",
            )
        nonce = str(next(self._numbers))
        command = self._command(request, nonce)
        if what == "reconnect":
            stream.send(command)
            return pb.AskClientReply(code=v2.OK)
        self._wait(request, call, nonce)
        stream.send(command)
        return LATER

    def _stream(self, client_id: str) -> CommandStream:
        session = self._sessions.find(client_id)
        stream = session.stream if session is not None else None
        if stream is None or not stream.has_room:
            raise InvalidArgument(
                f"client {client_id[:255]!r} has no open stream here, or does not read it: it cannot be asked",
                field="client_id",
                value=client_id[:255],
            )
        return stream

    def _command(self, request: pb.AskClientRequest, nonce: str) -> v2.TelemetryCommand:
        if request.HasField("reconnect"):
            return v2.TelemetryCommand(
                reconnect_endpoints_command=v2.ReconnectEndpointsCommand(nonce=nonce)
            )
        if request.HasField("thread_stacks"):
            return v2.TelemetryCommand(
                print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce)
            )
        message = self._message(request.try_message)
        return v2.TelemetryCommand(
            verify_message_command=v2.VerifyMessageCommand(nonce=nonce, message=message)
        )

    def _message(self, place: pb.TryMessage) -> v2.Message:
        self._topics.for_reading(place.topic, place.queue)
        low, high = self._store.queue_bounds(place.topic, place.queue)
        if not low <= place.offset < high:
            raise MessageNotFound(
                f"no message at offset {place.offset} of {place.topic}/{place.queue}: it has {low} to {high - 1}",
                field="offset",
                value=place.offset,
            )
        found = self._store.read_queue(place.topic, place.queue, place.offset, 1, 1).records
        return delivered(found, v2.Resource(name=place.topic), attempt=1)

    def _wait(self, request: pb.AskClientRequest, call: Call, nonce: str) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            raise Overloaded(
                f"{len(self._waiting)} questions to clients wait, the limit is {_WAITING_MAX}: ask later",
                field="questions",
                limit=_WAITING_MAX,
                value=len(self._waiting),
            )
        timeout_ms = min(request.timeout_ms or _TIMEOUT_MS, _TIMEOUT_MAX_MS)
        timer = self._timers.after(timeout_ms, lambda: self._give_up(nonce, timeout_ms))
        self._waiting[nonce] = _Question(request.client_id, call, timer)
        call.on_cancel(lambda: self._drop(nonce))

    def _drop(self, nonce: str) -> None:
        self._forget(nonce)

    def _forget(self, nonce: str) -> _Question | None:
        question = self._waiting.pop(nonce, None)
        if question is not None:
            self._timers.cancel(question.timer)
        return question

    def _give_up(self, nonce: str, timeout_ms: int) -> None:
        question = self._forget(nonce)
        if question is not None:
            question.call.fail(
                RequestTimeout(
                    f"client {question.client_id!r} did not answer in {timeout_ms} ms: clients of its language may"
                    " answer nothing",
                    client_id=question.client_id,
                )
            )

    def take(self, client_id: str, command: v2.TelemetryCommand) -> None:
        """Take what CLIENT_ID answers; what nobody waits for is passed over."""
        stacks, result = command.thread_stack_trace, command.verify_message_result
        nonce = stacks.nonce or result.nonce
        question = self._waiting.get(nonce)
        if question is None or question.client_id != client_id:
            return
        self._forget(nonce)
        question.call.reply(
            pb.AskClientReply(
                code=command.status.code or v2.OK,
                message=command.status.message,
                text=stacks.thread_stack_trace,
            )
        )


def _described(session: ClientSession, ahead: int, seen: SeenNames) -> pb.OfficialClient:
    client = pb.OfficialClient(
        client_id=session.client_id,
        language=session.language,
        streams=len(session.streams),
        heard_ms=session.heard_ms + ahead,
    )
    settings = session.settings
    if settings is None:
        return client
    agent = settings.user_agent
    if agent.language and agent.language in v2.Language.values():
        client.language = v2.Language.Name(agent.language)
    client.version = agent.version
    if settings.client_type in v2.ClientType.values():
        client.type = v2.ClientType.Name(settings.client_type)
    topics = [topic.name for topic in settings.publishing.topics] or [
        entry.topic.name for entry in settings.subscription.subscriptions
    ]
    group = settings.subscription.group.name
    client.hidden_group = bool(group) and not seen.has_group(group)
    client.group = "" if client.hidden_group else group
    shown = [topic for topic in topics if seen.has_topic(topic)]
    client.hidden_topics = len(topics) - len(shown)
    client.topics.extend(shown[:_TOPICS_SHOWN])
    return client
