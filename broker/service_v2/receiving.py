"""What simple and push consumers ask for: ReceiveMessage, and what becomes of each delivery (AckMessage,
ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue).

ReceiveMessage: messages are delivered as soon as there are some, or none when the wait is over.

    status   message …   delivery_timestamp

A receive waits for as long as it asks, but between POLLING_LEAST_MS and POLLING_MOST_MS, and is over half a second
before its caller gives up. Which queue it names does not matter: it gets what there is of the topic, BATCH_MAX messages
at most. A wait has no task: the handler keeps its stream. What a stream that breaks has not carried is handed back, but
for that of push consumers that name their attempts: they ask for the same again.

The receipt handle says which delivery is meant; the message id of a request is an echo. A handle is good for the group
and the topic that it came from, until its time is over or a newer one takes its place. Acknowledging what is finished
already is fine, and so is forwarding it.

A push consumer says when a message comes again because it failed it: what it failed for the last time is a dead letter
then, and not after one more wait. If it asks for less than PUSHED_LEAST_MS, as those of Node.js do, the message comes
again after its group's back-off instead. Simple consumers may say 0.

Source: v2-protocol.md §3.5, §3.9, §4.3, §4.5; fixtures v2/receive, v2/ack and v2/dead-letter.

Which messages of a topic each official client wants for its group: all those of a group the same.

A client whose filter is not that of the others makes the group step over messages that they want, for good. While the
clients change over from one filter to another, both are served for a grace period, and then the newer one
(groups/grace.py). A group may also refuse a second filter at once, or serve all, as it is set (the setting that members
of PocketMQ's own protocol go by). A client is refused by the answer to its settings and to its receives. Topics may
differ: what is lent of a topic goes to whoever receives from it.

    known      by settings and by receives, whichever came last: some clients send no settings, or not again for minutes
    forgotten  at the client's goodbye; when it counts as gone (sessions.py); without a session _SILENT_MS after its
               last receive
    first      in a group that refuses: who has wanted its filter for longest is right, and the others are refused

Bounds: `_WANTS_MAX` clients' wants of a topic together. A receive that wants what its client wanted before costs one
look. The event loop owns it.

SyncLiteSubscription, what clients of light topics ask for, is refused. A topic of type LITE takes messages, each with
the light topic that it is for, and ordinary consumers get them all, with `lite_topic`. Consumers of single light topics
are not served: they are told so (NOT_IMPLEMENTED) once what they ask is well-formed, and what to do instead. Apache's
broker refuses them as well, without its proxy in cluster mode.

Source: v2-protocol.md §4.10; fixtures v2/lite and v2/cluster-lite.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote

from ...proto import errors
from ...proto.filters.expressions import normalised
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.properties import LITE_TOPIC, REASON_HEADER
from ...proto.rpc import Call, Later, MethodTable, Stream, server_stream, unary as plain_unary
from ...store.format.state_tables import GroupConfig
from ..config import BrokerConfig
from ..groups.generations import want_in_words
from ..groups.grace import STEPPED_OVER, SUPERSEDED, Grace, served_for
from ..messages.filters import choice_of
from ..pop.pops import BATCH_MAX, Pops
from ..pop.receives import Asked, Popped, PoppedMessage
from ..timing.timers import Timers
from ..topics_and_groups import (
    GRACE,
    REFUSE,
    TYPE_ATTRIBUTE,
    Groups,
    Topics,
    announced_intervals_of,
    subscription_check,
)
from .messages import (
    check_invisible,
    check_lite_topic,
    checked_group,
    checked_topic,
    deliver,
    filter_of,
    group_name,
    milliseconds,
)
from .service import (
    OK,
    Refused,
    answered_when,
    client_id,
    service,
    status_of,
    status_of_bug,
    status_with,
    unary,
)
from .sessions import ClientSession, Sessions

logger = logging.getLogger(__name__)


POLLING_LEAST_MS: Final = 5_000
POLLING_MOST_MS: Final = 20_000
#: A receive is over so long before its caller's deadline.
DEADLINE_SPARE_MS: Final = 500
#: Of the time that a caller gives without saying how long to wait, so much is for the answer: half a usual time-out.
_REQUEST_SHARE_MS: Final = 1_500
#: What a broken stream did not carry comes again after this.
_HANDED_BACK_MS: Final = 1_000
_VERSION: Final = "x-mq-client-version"
#: Clients before this one do not know ILLEGAL_POLLING_TIME.
_POLLING_TIME_SINCE: Final = (5, 0, 3)

NOTHING_NEW: Final = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")
_NOTHING_MATCHES: Final = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no match message")
_ALL_IS_WELL: Final = v2.ReceiveMessageResponse(status=OK)


class Receiving:
    """Answers receives from POPS; SUBSCRIPTIONS knows what others of a group want, NOW_MS when a delivery leaves.

    INVISIBLE_MS_MIN: the shortest time that messages may be asked to stay away for.
    """

    def __init__(
        self,
        pops: Pops,
        subscriptions: Subscriptions,
        now_ms: Callable[[], int],
        config: BrokerConfig,
    ) -> None:
        self._pops = pops
        self._subscriptions = subscriptions
        self._config = config
        self._now_ms = now_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "ReceiveMessage": server_stream(
                    v2.ReceiveMessageRequest, v2.ReceiveMessageResponse, self.receive
                )
            }
        )

    def receive(self, request: v2.ReceiveMessageRequest, stream: Stream) -> None:
        """Deliver what there is, now or later."""
        try:
            client = client_id(stream)
        except Refused as error:
            stream.send(v2.ReceiveMessageResponse(status=status_of(error)))
            stream.finish()
            return
        try:
            wanted = filter_of(request.filter_expression)
            asked = _asked(request, stream, client, wanted, self._config.invisible_ms_min)
            self._subscriptions.receive(client, asked.group, asked.topic, wanted)
            answer = _Answer(self, asked, request.message_queue.topic, stream)
            if not asked.batch:
                self.nothing(stream, NOTHING_NEW)
                return
            waiting = self._pops.receive(asked, answer.popped)
            if waiting is not None:
                stream.on_cancel(waiting.cancel)
        except errors.PocketMQError as error:
            self.nothing(stream, status_of(error))
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            self.nothing(stream, status_of_bug("ReceiveMessageRequest", bug))

    def nothing(self, stream: Stream, status: v2.Status) -> None:
        """Answer with STATUS, and no message."""
        stream.send(v2.ReceiveMessageResponse(status=status))
        self.end(stream)

    def end(self, stream: Stream) -> None:
        """Say when the answer left, and end it."""
        last = v2.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._now_ms())
        stream.send(last)
        stream.finish()

    def hand_back(self, asked: Asked, handles: Sequence[str]) -> None:
        """Have what nobody got come again soon. That counts: what no client can take must not come for ever."""
        for handle in handles:
            try:
                self._pops.change_invisible(asked.group, asked.topic, handle, _HANDED_BACK_MS)
            except errors.InvalidReceiptHandle:
                continue  # It comes again already.


class _Answer:
    """What a receive, which may wait, is answered with."""

    __slots__ = ("_asked", "_receiving", "_stream", "_topic")

    def __init__(
        self, receiving: Receiving, asked: Asked, topic: v2.Resource, stream: Stream
    ) -> None:
        self._receiving = receiving
        self._asked = asked
        self._topic = topic
        self._stream = stream

    def popped(self, popped: Popped) -> None:
        """Send what was POPPED."""
        try:
            self._send(popped)
        except Exception as bug:  # The edge: others wait for the same event.
            self._receiving.nothing(self._stream, status_of_bug("ReceiveMessageRequest", bug))

    def _send(self, popped: Popped) -> None:
        receiving, stream = self._receiving, self._stream
        replies = list(self._replies(popped.deliveries))
        if replies:
            self._deliver(replies)
        elif popped.error is not None:
            receiving.nothing(stream, status_of(popped.error))
        else:
            receiving.nothing(stream, _NOTHING_MATCHES if popped.filtered_only else NOTHING_NEW)

    def _replies(
        self, deliveries: Iterable[PoppedMessage]
    ) -> Iterator[tuple[str, v2.ReceiveMessageResponse]]:
        """Yield handle and reply of each of DELIVERIES that is a message."""
        topic = self._topic
        for record, found_in, queue, offset, attempt, handle, invisible_ms in deliveries:
            reply = v2.ReceiveMessageResponse()
            try:
                deliver(
                    reply.message,
                    record,
                    topic,
                    handle=handle,
                    attempt=attempt,
                    invisible_ms=invisible_ms,
                )
            except errors.InvalidRecord as error:
                # Its attempts count, and then it is given up.
                logger.error(
                    "record cannot be delivered topic=%s queue=%d offset=%d problem=%s",
                    found_in,
                    queue,
                    offset,
                    error.message,
                )
            else:
                yield handle, reply

    def _deliver(self, replies: Sequence[tuple[str, v2.ReceiveMessageResponse]]) -> None:
        stream = self._stream
        send = stream.send
        send(_ALL_IS_WELL)
        #: Handles, and how much the stream has taken up to the end of each message.
        ends: list[tuple[str, int]] = []
        for handle, reply in replies:
            send(reply)
            ends.append((handle, stream.queued_bytes))
        self._receiving.end(stream)
        if not self._is_repeated:
            stream.on_cancel(partial(self._broken, ends, stream.queued_bytes))

    @property
    def _is_repeated(self) -> bool:
        """Will its client ask for the same again? If it does not, it is gone, and its leases with it."""
        return bool(self._asked.attempt_id) and self._asked.auto_renew

    def _broken(self, ends: Sequence[tuple[str, int]], taken_bytes: int) -> None:
        """Hand back what had not left when the stream broke."""
        left_bytes = taken_bytes - self._stream.queued_bytes
        lost = [handle for handle, end in ends if end > left_bytes or not taken_bytes]
        self._receiving.hand_back(self._asked, lost)


def _asked(
    request: v2.ReceiveMessageRequest,
    stream: Stream,
    client: str,
    wanted: pb.Filter,
    invisible_ms_min: int,
) -> Asked:
    """Return what REQUEST of CLIENT asks of pop, of what is WANTED; raise Refused."""
    group = checked_group(request.group.name)
    topic = checked_topic(request.message_queue.topic.name)
    wait_ms = _wait_ms(request, stream)
    batch = request.batch_size
    if batch < 0:
        raise Refused(
            v2.BAD_REQUEST,
            f"batch_size is {batch}: must be 1 to {BATCH_MAX}",
            field="batch_size",
            limit=BATCH_MAX,
            value=batch,
        )
    invisible_ms, auto_renew = 0, request.auto_renew
    if not auto_renew:
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, invisible_ms_min, " (broker.invisible_ms_min)")
    return Asked(
        group=group,
        topic=topic,
        client_id=client,
        batch=min(batch, BATCH_MAX),
        invisible_ms=invisible_ms,
        wait_ms=wait_ms,
        auto_renew=auto_renew,
        attempt_id=request.attempt_id,
        choice=None if wanted.kind == pb.Filter.ALL else choice_of(wanted),
    )


def _wait_ms(request: v2.ReceiveMessageRequest, stream: Stream) -> int:
    """Return how long a receive may wait; raise Refused for a caller that gives less than the shortest wait."""
    left_ms = stream.deadline_ms
    if left_ms is not None and left_ms < POLLING_LEAST_MS:
        knows = _version(stream.metadata.get(_VERSION, "")) >= _POLLING_TIME_SINCE
        raise Refused(
            v2.ILLEGAL_POLLING_TIME if knows else v2.BAD_REQUEST,
            f"{left_ms} ms are left until the deadline of this call, and the shortest wait for messages is"
            f" {POLLING_LEAST_MS} ms: give it a later deadline, of the polling time and some seconds",
            field="long_polling_timeout",
            limit=POLLING_LEAST_MS,
            value=left_ms,
        )
    if request.HasField("long_polling_timeout"):
        asked_ms = milliseconds(request.long_polling_timeout)
    elif left_ms is not None:
        asked_ms = left_ms - _REQUEST_SHARE_MS
    else:
        asked_ms = POLLING_MOST_MS
    wait_ms = min(max(asked_ms, POLLING_LEAST_MS), POLLING_MOST_MS)
    return wait_ms if left_ms is None else min(wait_ms, left_ms - DEADLINE_SPARE_MS)


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a client's version; the newest for one that is not known."""
    parts = text.strip().lstrip("v").split("-")[0].split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return (1 << 31,)
    return tuple(map(int, parts))


Reply = TypeVar(
    "Reply",
    v2.AckMessageResponse,
    v2.ChangeInvisibleDurationResponse,
    v2.ForwardMessageToDeadLetterQueueResponse,
)
#: What push consumers get back sooner comes after the group's back-off.
PUSHED_LEAST_MS: Final = 1_000


class Acknowledging:
    """Finishes and hands back what POPS delivered. RETRY_DELAYS_MS: of groups without a policy of their own."""

    def __init__(
        self, pops: Pops, topics: Topics, groups: Groups, retry_delays_ms: Sequence[int]
    ) -> None:
        self._pops = pops
        self._topics = topics
        self._groups = groups
        self._retry_delays_ms = retry_delays_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "AckMessage": unary(v2.AckMessageRequest, v2.AckMessageResponse, self.acknowledge),
                "ChangeInvisibleDuration": plain_unary(
                    v2.ChangeInvisibleDurationRequest,
                    v2.ChangeInvisibleDurationResponse,
                    self.change,
                ),
                "ForwardMessageToDeadLetterQueue": unary(
                    v2.ForwardMessageToDeadLetterQueueRequest,
                    v2.ForwardMessageToDeadLetterQueueResponse,
                    self.forward,
                ),
            }
        )

    def acknowledge(
        self, request: v2.AckMessageRequest, call: Call
    ) -> v2.AckMessageResponse | Later:
        """Finish what each entry of REQUEST means; the reply has an entry for each, in order."""
        group, topic = self._names(request.group, request.topic)
        reply = v2.AckMessageResponse()
        finish, add = self._pops.acknowledge, reply.entries.add
        failed: dict[int, v2.Status] = {}
        count = 0
        for entry in request.entries:
            handle, status = entry.receipt_handle, OK
            try:
                finish(group, topic, handle)
            except errors.PocketMQError as error:
                status = status_of(error)
                failed.setdefault(status.code, status)
            add(message_id=entry.message_id, receipt_handle=handle, status=status)
            count += status is OK
        reply.status.MergeFrom(_status_of_all(count, failed))
        return self._when_safe(reply, call)

    def change(
        self, request: v2.ChangeInvisibleDurationRequest, call: Call
    ) -> v2.ChangeInvisibleDurationResponse | Later:
        """Have a message come again when REQUEST says; the reply always has a handle, which clients go on with."""
        try:
            client_id(call)
            handle = self._change(request)
            reply = v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)
            return self._when_safe(reply, call)
        except errors.PocketMQError as error:
            status = status_of(error)
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            status = status_of_bug("ChangeInvisibleDurationRequest", bug)
        return v2.ChangeInvisibleDurationResponse(
            status=status, receipt_handle=request.receipt_handle
        )

    def _change(self, request: v2.ChangeInvisibleDurationRequest) -> str:
        group, topic = self._names(request.group, request.topic)
        handle = request.receipt_handle
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, 0)
        suspend = request.suspend
        attempt = 0 if suspend else self._pops.renewed_attempt(group, topic, handle)
        if attempt >= 1:
            config = self._groups.get(group)
            if attempt > config.retry_times_max:
                reason = f"its consumer failed it at attempt {attempt}, the last one"
                self._pops.forward_to_dead_letters(group, topic, handle, reason)
                return handle
            if invisible_ms < PUSHED_LEAST_MS:
                invisible_ms = self._back_off_ms(config, attempt)
        return self._pops.change_invisible(group, topic, handle, invisible_ms, suspend=suspend)

    def _back_off_ms(self, group: GroupConfig, attempt: int) -> int:
        """Return how long a message of GROUP waits after ATTEMPT failed."""
        listed = announced_intervals_of(group.retry_policy)
        delays_ms = listed or self._retry_delays_ms
        return max(delays_ms[min(attempt, len(delays_ms)) - 1], PUSHED_LEAST_MS)

    def forward(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> v2.ForwardMessageToDeadLetterQueueResponse | Later:
        """Put what REQUEST means among the dead letters of its group, with the reason in CALL's metadata, if any."""
        group, topic = self._names(request.group, request.topic)
        limit = request.max_delivery_attempts
        reason = unquote(call.metadata.get(REASON_HEADER, "")) or (
            f"its consumer gave up after attempt {request.delivery_attempt}"
            + (f" of {limit}" if limit else "")
        )
        self._pops.forward_to_dead_letters(group, topic, request.receipt_handle, reason)
        return self._when_safe(v2.ForwardMessageToDeadLetterQueueResponse(status=OK), call)

    def _when_safe(self, reply: Reply, call: Call) -> Reply | Later:
        """Return REPLY if what it says is safe; or else LATER, and CALL is answered once it is, or with the error."""
        return answered_when(self._pops.when_safe, call, partial(_settled, reply))

    def _names(self, group: v2.Resource, topic: v2.Resource) -> tuple[str, str]:
        """Return the names of GROUP and of TOPIC, which exists; raise Refused or TopicNotFound."""
        name = group_name(group, self._groups)
        return name, self._topics.get(checked_topic(topic.name)).name


def _settled(reply: Reply, error: errors.PocketMQError | None) -> Reply:
    """Return REPLY as it is, or as ERROR has it: what was to be kept is not safe."""
    if error is not None:
        status = status_of(error)
        reply.status.CopyFrom(status)
        if isinstance(reply, v2.AckMessageResponse):
            for entry in reply.entries:
                entry.status.CopyFrom(status)
    return reply


def _status_of_all(good: int, failed: dict[int, v2.Status]) -> v2.Status:
    """Return the status of a reply with so many GOOD entries, and those that FAILED, one of each code."""
    if not failed:
        if good:
            return OK
        raise Refused(
            v2.BAD_REQUEST,
            "no entry: give the receipt handle of at least one message",
            field="entries",
        )
    if good or len(failed) > 1:
        return status_with(
            v2.MULTIPLE_RESULTS, "not all entries have the same outcome: each has its own status"
        )
    (only,) = failed.values()
    return only


# ---------------------------------------------------------------- subscriptions


_WANTS_MAX: Final = 100_000
_SILENT_MS: Final = 60_000
_SCAN_MS: Final = 60_000
#: Topics whose difference is told.
_TOLD_MAX: Final = 5

#: Group and topic.
Place: TypeAlias = tuple[str, str]
LITE: Final = "LITE"


@dataclass(slots=True)
class _Want:
    """What one client wants of a topic: as it said it, and in the form of all that mean the same."""

    said: tuple[int, str]
    plain: tuple[int, str]
    heard_ms: int


@dataclass(slots=True)
class _Wants:
    """What the clients of a group want of a topic, who has wanted it for longest first. ALIKE: all the same."""

    of: dict[str, _Want] = field(default_factory=dict)
    alike: bool = True
    grace: Grace[tuple[int, str]] = field(default_factory=Grace)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A CLIENT wants something else of a TOPIC, THERE, than the one that is looked at, HERE."""

    client: str
    topic: str
    here: tuple[int, str]
    there: tuple[int, str]


def _told(client: str, group: str, differences: Sequence[_Difference]) -> tuple[str, str]:
    """Return in words who differs, and how CLIENT differs from the first other one, a topic each."""
    other = differences[0].client
    told = [
        f"topic {one.topic!r}: {want_in_words(one.here)} here, {want_in_words(one.there)} there"
        for one in differences
        if one.client == other
    ]
    more = f"; and {len(told) - _TOLD_MAX} more" if len(told) > _TOLD_MAX else ""
    who = f"client {client!r} wants something else of group {group!r} than client {other!r}"
    return who, "; ".join(told[:_TOLD_MAX]) + more


class Subscriptions:
    """The wants of the clients of SESSIONS, by group and topic; TIMERS turn by the machine's time."""

    def __init__(
        self, config: BrokerConfig, groups: Groups, sessions: Sessions, timers: Timers
    ) -> None:
        self._config = config
        self._groups = groups
        self._sessions = sessions
        self._timers = timers
        self._wants: dict[Place, _Wants] = {}
        self._places: dict[str, set[Place]] = {}
        self._count = 0
        sessions.on_gone.append(self.forget)

    def start(self) -> None:
        """Begin to forget clients without a session."""
        self._timers.every(_SCAN_MS, self._scan)

    # --- who wants what

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Note what SESSION's new SETTINGS subscribe to; raise Refused if the group does not serve that."""
        before, now = _topics_of(session.settings), dict(_wants_of(settings))
        client = session.client_id
        self._check(client, now)
        for place in before - now.keys():
            self._drop(place, client)
        for place, wanted in now.items():
            self._note(client, place, wanted)

    def receive(self, client: str, group: str, topic: str, wanted: pb.Filter) -> None:
        """Note that CLIENT receives what is WANTED of TOPIC for GROUP; raise Refused as `settle` does."""
        place = group, topic
        wants = self._wants.get(place) or _Wants()
        mine = wants.of.get(client)
        if mine is None or mine.said != (wanted.kind, wanted.expression) or not wants.alike:
            self._check(client, {place: wanted})
            mine = self._note(client, place, wanted)
        mine.heard_ms = self._timers.now_ms()

    def forget(self, client: str) -> None:
        """Forget CLIENT, which is gone."""
        for place in list(self._places.get(client, ())):
            self._drop(place, client)

    def of_group(self, group: str) -> list[pb.Member]:
        """Return the official clients that consume for GROUP, and what each wants."""
        found: dict[str, pb.Member] = {}
        for (owner, topic), wants in self._wants.items():
            for client, want in wants.of.items() if owner == group else ():
                member = found.setdefault(client, self._described(client))
                kind, expression = want.plain
                wire = pb.Filter(kind=pb.Filter.Kind.Name(kind), expression=expression)
                member.subscriptions.add(topic=topic, filter=wire)
                member.last_heard_ms = max(member.last_heard_ms, self._unix_ms(want.heard_ms))
        return [found[client] for client in sorted(found)]

    def grace_left_ms(self, group: str) -> int | None:
        """Return in how long the newest filter of GROUP alone is served; None: there are not several."""
        if self._check_of(group) != GRACE:
            return None
        now_ms, grace_ms = self._timers.now_ms(), self._config.subscription_grace_ms
        ends = [
            wants.grace.ends_ms([want.plain for want in wants.of.values()], now_ms, grace_ms)
            for (owner, _), wants in self._wants.items()
            if owner == group and not wants.alike
        ]
        left = [max(0, one - now_ms) for one in ends if one is not None]
        return min(left, default=None)

    def _described(self, client: str) -> pb.Member:
        session = self._sessions.find(client)
        if session is None:
            return pb.Member(member_id=client, kind="receives")
        kind = session.settings.client_type if session.settings is not None else 0
        named = v2.ClientType.Name(kind).lower().replace("_", " ") if kind else "receives"
        return pb.Member(
            member_id=client,
            kind=named,
            peer=session.language,
            last_heard_ms=self._unix_ms(session.heard_ms),
        )

    def _unix_ms(self, instant_ms: int) -> int:
        return instant_ms + self._timers.unix_ms() - self._timers.now_ms()

    # --- differences

    def _check(self, client: str, wanted: dict[Place, pb.Filter]) -> None:
        """Raise Refused if the group does not serve what is WANTED by CLIENT; log what differs from others."""
        if not wanted:
            return
        group = next(iter(wanted))[0]
        check = self._check_of(group)
        others: list[_Difference] = []
        refused: list[_Difference] = []
        for place, wire in wanted.items():
            won = self._winner(client, place, wire)
            other = self._other(client, place, wire, won if check == GRACE else None)
            if other is None:
                continue
            others.append(other)
            if (check == GRACE and won is not None) or (
                check == REFUSE and self._is_later(client, place, other)
            ):
                refused.append(other)
        if refused:
            who, difference = _told(client, group, refused)
            advice = SUPERSEDED if check == GRACE else "subscribe alike, or use a group of its own"
            other_client = refused[0].client
            raise Refused(
                v2.FORBIDDEN,
                f"{who}: {difference}: {advice}{self._if_gone(other_client)}",
                group=group,
                client=client,
                other=other_client,
                difference=difference,
            )
        if not others or all(self._has(client, place, wire) for place, wire in wanted.items()):
            return
        who, difference = _told(client, group, others)
        advice = served_for(self._config.subscription_grace_ms) if check == GRACE else STEPPED_OVER
        logger.warning("subscriptions differ reason=%s: %s: %s", who, difference, advice)

    def _check_of(self, group: str) -> str:
        try:
            return subscription_check(self._groups.get(group))
        except errors.GroupNotFound:
            return GRACE

    def _winner(self, client: str, place: Place, wire: pb.Filter) -> tuple[int, str] | None:
        """Return the filter that has won against WIRE of CLIENT; None: WIRE is served in a grace period, or alone."""
        wants = self._wants.get(place)
        if wants is None:
            return None
        mine = _plain(wire)
        present = [
            want.plain
            for name, want in wants.of.items()
            if self._is_there(name, want) and (name != client or want.plain == mine)
        ]
        grace_ms = self._config.subscription_grace_ms
        return wants.grace.winner(mine, present, self._timers.now_ms(), grace_ms)

    def _other(
        self, client: str, place: Place, wire: pb.Filter, won: tuple[int, str] | None
    ) -> _Difference | None:
        """Return the first client that wants something else of PLACE than WIRE, and if a filter has WON, that one."""
        mine = _plain(wire)
        wants = self._wants.get(place)
        for name, want in list(wants.of.items()) if wants is not None else ():
            if name == client or want.plain == mine:
                continue
            if not self._is_there(name, want):
                self._drop(place, name)
            elif won in (None, want.plain):
                return _Difference(name, place[1], mine, want.plain)
        return None

    def _is_later(self, client: str, place: Place, other: _Difference) -> bool:
        """Does CLIENT want what it wants of PLACE since after the OTHER client does?"""
        names = list(self._wants[place].of)
        want = self._wants[place].of.get(client)
        if want is None or want.plain != other.here:
            return True
        return names.index(client) > names.index(other.client)

    def _has(self, client: str, place: Place, wire: pb.Filter) -> bool:
        """Is what CLIENT wants of PLACE known as WIRE?"""
        wants = self._wants.get(place)
        want = None if wants is None else wants.of.get(client)
        return want is not None and want.plain == _plain(wire)

    def _is_there(self, client: str, want: _Want) -> bool:
        session = self._sessions.find(client)
        if session is not None:
            return not session.is_gone
        return self._timers.now_ms() - want.heard_ms < _SILENT_MS

    def _if_gone(self, client: str) -> str:
        """Return what to do if CLIENT, which wants something else, is not there any more."""
        session = self._sessions.find(client)
        if session is None:
            return f" (that one has no stream: if it is gone, try again in {_SILENT_MS} ms)"
        if session.streams:
            return ""
        left_ms = session.silent_in_ms(self._timers.now_ms())
        return f" (that one is not connected: if it is gone, try again in {left_ms} ms)"

    # --- the table

    def _note(self, client: str, place: Place, wire: pb.Filter) -> _Want:
        wants = self._wants.get(place)
        plain = _plain(wire)
        before = None if wants is None else wants.of.get(client)
        if before is not None and before.plain == plain:
            before.said = wire.kind, wire.expression
            return before
        if before is not None:
            self._drop(place, client)
        if self._count >= _WANTS_MAX:
            raise errors.Overloaded(
                f"clients subscribe to {self._count} topics in all, the limit is {_WANTS_MAX}: close some",
                field="subscriptions",
                limit=_WANTS_MAX,
                value=self._count,
            )
        wants = self._wants.setdefault(place, _Wants())
        made = wants.of[client] = _Want((wire.kind, wire.expression), plain, self._timers.now_ms())
        self._count += 1
        self._places.setdefault(client, set()).add(place)
        wants.alike = len({want.plain for want in wants.of.values()}) == 1
        return made

    def _drop(self, place: Place, client: str) -> None:
        wants = self._wants.get(place)
        if wants is None or wants.of.pop(client, None) is None:
            return
        self._count -= 1
        places = self._places[client]
        places.discard(place)
        if not places:
            del self._places[client]
        wants.alike = len({want.plain for want in wants.of.values()}) <= 1
        if not wants.of:
            del self._wants[place]

    def _scan(self) -> None:
        for place, wants in list(self._wants.items()):
            for client in [
                name for name, want in wants.of.items() if not self._is_there(name, want)
            ]:
                self._drop(place, client)


def _plain(wire: pb.Filter) -> tuple[int, str]:
    found = normalised(wire)
    return found.kind, found.expression


def _wants_of(settings: v2.Settings) -> Iterator[tuple[Place, pb.Filter]]:
    """Yield what SETTINGS subscribe to; what is no filter is refused where it is received."""
    group = settings.subscription.group.name
    for entry in settings.subscription.subscriptions:
        try:
            wanted = filter_of(entry.expression)
            normalised(wanted)
        except (Refused, errors.InvalidFilter):
            continue
        yield (group, entry.topic.name), wanted


def _topics_of(settings: v2.Settings | None) -> set[Place]:
    if settings is None:
        return set()
    group = settings.subscription.group.name
    return {(group, entry.topic.name) for entry in settings.subscription.subscriptions}


# --- light topics


class LiteSubscriptions:
    """Refuses subscriptions to light topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "SyncLiteSubscription": unary(
                    v2.SyncLiteSubscriptionRequest, v2.SyncLiteSubscriptionResponse, self.sync
                )
            }
        )

    def sync(self, request: v2.SyncLiteSubscriptionRequest, call: Call) -> NoReturn:
        """Raise NotServed for REQUEST; Refused or TopicNotFound, if it would not do anywhere."""
        checked_group(request.group.name)
        topic = self._topics.get(checked_topic(request.topic.name))
        if topic.attributes.get(TYPE_ATTRIBUTE) != LITE:
            raise Refused(
                v2.ILLEGAL_TOPIC,
                f"topic {topic.name!r} has no light topics: its {TYPE_ATTRIBUTE} is not {LITE}",
                field="topic",
                value=topic.name,
            )
        for name in request.lite_topic_set:
            check_lite_topic(name)
        if request.action not in v2.LiteSubscriptionAction.values():
            raise errors.InvalidArgument(
                f"action is {request.action}: must be one of PARTIAL_ADD (0) to COMPLETE_REMOVE (3)",
                field="action",
                value=request.action,
            )
        raise errors.NotServed(
            f"consumers of single light topics are not served: subscribe to {topic.name!r} with a push or simple"
            " consumer, which gets the messages of all its light topics, or, in a group of its own, of one with the"
            f" SQL filter {LITE_TOPIC} = 'name'",
            topic=topic.name,
        )
