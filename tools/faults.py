"""Fault injection: a broker that does to its clients all that at-least-once allows, and nothing that it forbids.

    pocketmq serve --faults "redeliver=10%,duplicate=2%,reorder,late-ack,cut-streams" --seed 7

    kind          chance  of         what happens
    redeliver     10 %    acks       it is lost: the message is redelivered; PocketMQ's consumers, which commit, resume
                                     a few messages before that, as if the broker had lost the commit
    duplicate      5 %    sends      the message is stored twice, as if a reply was lost and the sender tried again; not
                                     one that a producer has numbered, that is scheduled, or of a transaction
    reorder      100 %    replies    messages of a batch come in another order, unless their group is ordered; for
                                     PocketMQ's consumers, which get each queue in order, queues overtake each other
    late-ack      50 %    acks       it arrives up to LATE_S later
    cut-streams    2 %    replies    the stream breaks instead: batches are stored, messages are not delivered

Single faults happen to the next calls that match (`next`): see SINGLE. Each kind has its own random source, so that a
seed makes the same decisions call by call; the order of calls is up to the clients.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from weakref import WeakSet

from google.protobuf.message import Message

from ..broker.broker import Network
from ..broker.config import BrokerConfig
from ..broker.ports.certificates import Certificates
from ..broker.service_v2.service import SERVICE
from ..broker.service_v2.statuses import OK
from ..proto.configuration import nearest
from ..proto.errors import ConnectionLost, InvalidArgument, LeaseLost, Overloaded, PocketMQError
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ..proto.rpc import LATER, Call, CallContext, Carrier, MethodTable, RpcError, Stream
from ..proto.rpc.pages import Page

logger = logging.getLogger(__name__)

#: Kinds, and how likely each is where nothing is said.
CHANCES: Final[Mapping[str, float]] = {
    "redeliver": 0.1,
    "duplicate": 0.05,
    "reorder": 1.0,
    "late-ack": 0.5,
    "cut-streams": 0.02,
}
#: What may happen to the next calls alone.
SINGLE: Final[Mapping[str, str]] = {
    "refuse-send": "a send is refused: TOO_MANY_REQUESTS, Overloaded",
    "lose-send-answer": "a send is stored, and its answer lost: the connection seems to break",
    "lose-ack": "an acknowledgement, or a commit, is lost: the message is redelivered",
    "cut-stream": "a stream ends instead of delivering messages",
}
LATE_S: Final = 0.25
_OVERTAKE_S: Final = 0.02
#: Limit of messages that are redelivered after the loss of a commit.
_BACK_MAX: Final = 4
REDELIVERIES_MAX: Final = 2
#: Messages whose redeliveries are counted.
_COUNTED_MAX: Final = 100_000
_NEXT_MAX: Final = 10_000
_V1: Final = "/pocketmq.v1.Broker/"
_V2: Final = f"/{SERVICE}/"
#: Of messages that are scheduled, or of a transaction.
_WAITING: Final = (b"TIMER_DEL", b"DELAY\x01", b"TRAN_MSG\x01")
_PART: Final = re.compile(r"\s*([a-z-]+)\s*(?:=\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*)?")
_TELLS: Final = "faults"


def parse_faults(text: str) -> dict[str, float]:
    """Return what "redeliver=10%,reorder" says: kinds with their chances. Raises InvalidArgument."""
    chances: dict[str, float] = {}
    for part in text.split(",") if text.strip() else ():
        found = _PART.fullmatch(part)
        kind = found[1] if found else part.partition("=")[0].strip()
        if kind not in CHANCES:
            raise InvalidArgument(
                f"faults: unknown kind {kind!r}{nearest(kind, CHANCES)} (kinds: {', '.join(CHANCES)})",
                field="faults",
                value=text,
            )
        percent = float(found[2]) if found and found[2] else CHANCES[kind] * 100
        if found is None or percent > 100:
            raise InvalidArgument(
                f"faults: {part.strip()!r}: write {kind}, or {kind}=10%, up to 100%",
                field="faults",
                value=text,
            )
        chances[kind] = percent / 100
    return chances


@dataclass(slots=True)
class _Single:
    kind: str
    topic: str | None
    group: str | None


@dataclass(frozen=True, slots=True)
class _Course:
    """What goes wrong from one `begin` to the next."""

    chances: Mapping[str, float]
    randoms: Mapping[str, Random]


class Faults:
    """What goes wrong: CHANCES by kind, drawn from SEED.

    `wrap` wraps the handlers of a few methods where the carrier gets them: a broker without faults has no part of it.
    A consumer that is not idempotent, or relies on an order that is not promised, fails so in its own tests.

    What stays true: what was acknowledged as sent is stored, and delivered until it is acknowledged; nothing is
    delivered that was not sent. An ordered group gets no message before all in front of it are acknowledged, and
    redeliveries come in order. No fault moves a message to the dead-letter queue, or costs an attempt. So that all
    continues, a fault redelivers a message up to REDELIVERIES_MAX times (once by a lost commit), and after a cut the
    next reply of that method leaves.

    The event loop owns it, but for `begin` and `next`, which any thread may call.
    """

    def __init__(self, chances: Mapping[str, float] | None = None, seed: int = 0) -> None:
        #: How often each kind has happened.
        self.counts: Counter[str] = Counter()
        self._course = _Course({}, {})
        self.begin(chances or {}, seed)
        self._next: deque[_Single] = deque()
        #: Methods whose last answer was cut off.
        self._cut: set[str] = set()
        self._redelivered: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        #: When the last acknowledgement of a group that was put off is due, by the loop's clock.
        self._due_s: dict[str, float] = {}
        #: Streams of fetches that are open.
        self._fetching: WeakSet[_Fetched] = WeakSet()
        #: Up to where a group was that was moved back in a queue.
        self._moved_from: dict[tuple[str, str, int], int] = {}

    def begin(self, chances: Mapping[str, float], seed: int = 0) -> None:
        """Have CHANCES be those from now on; none: nothing goes wrong any more."""
        self._course = _Course(dict(chances), {kind: Random(f"{seed} {kind}") for kind in CHANCES})

    def text(self) -> str:
        """Return what goes wrong, as `parse_faults` takes it."""
        chances = self._course.chances
        return ",".join(f"{kind}={chance * 100:.4g}%" for kind, chance in chances.items())

    def next(
        self, kind: str, times: int = 1, *, topic: str | None = None, group: str | None = None
    ) -> None:
        """Have KIND, one of SINGLE, happen to the next calls, of TOPIC and of GROUP if they are given."""
        if kind not in SINGLE:
            raise InvalidArgument(
                f"there is no single fault {kind!r}{nearest(kind, SINGLE)} (there are: {', '.join(SINGLE)})",
                field="kind",
                value=kind,
            )
        if not 0 < times <= _NEXT_MAX - len(self._next):
            raise InvalidArgument(
                f"times is {times}: at most {_NEXT_MAX} single faults wait, {len(self._next)} do",
                field="times",
                limit=_NEXT_MAX,
                value=times,
            )
        self._next.extend(_Single(kind, topic, group) for _ in range(times))

    def forget_next(self) -> None:
        """Have no single fault wait any more."""
        self._next.clear()

    # --- chance

    def _happens(self, kind: str) -> bool:
        course = self._course
        return course.randoms[kind].random() < course.chances.get(kind, 0.0)

    def _takes(self, kind: str, topic: str, group: str = "") -> bool:
        """Is a single fault of KIND waiting for a call of TOPIC and GROUP? Then it is over with this."""
        for one in self._next:
            if one.kind == kind and one.topic in (None, topic) and one.group in (None, group):
                self._next.remove(one)
                return True
        return False

    def _note(self, kind: str, **where: object) -> None:
        self.counts[kind] += 1
        told = " ".join(f"{name}={value}" for name, value in where.items())
        logger.info("%s kind=%s %s", _TELLS, kind, told)

    def _cuts(self, method: str, topic: str, group: str = "") -> bool:
        if self._takes("cut-stream", topic, group):
            self._note("cut-stream", method=method, topic=topic)
            return True
        if method in self._cut:
            self._cut.discard(method)
            return False
        if self._happens("cut-streams"):
            self._cut.add(method)
            self._note("cut-streams", method=method, topic=topic)
            return True
        return False

    # --- methods

    def wrap(self, table: MethodTable) -> MethodTable:
        """Return TABLE, a broker's, with the methods in which something may go wrong."""
        made: dict[str, Callable[[Any, MethodTable], Any]] = {
            f"{_V2}SendMessage": self._send_message,
            f"{_V2}ReceiveMessage": self._receive_message,
            f"{_V2}AckMessage": self._ack_message,
            f"{_V1}Produce": self._produce,
            f"{_V1}Fetch": self._fetch,
            f"{_V1}CommitOffsets": self._commit_offsets,
        }
        return MethodTable(
            {
                one.path: replace(one, handler=made[one.path](one.handler, table))
                if one.path in made
                else one
                for one in table
            }
        )

    # --- official clients

    def _send_message(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        def send(request: v2.SendMessageRequest, call: Call) -> Any:
            topic = request.messages[0].topic.name if request.messages else ""
            if self._takes("refuse-send", topic):
                self._note("refuse-send", topic=topic)
                text = f"{_TELLS}: this send is refused, send again"
                return v2.SendMessageResponse(
                    status=v2.Status(code=v2.TOO_MANY_REQUESTS, message=text)
                )
            if self._takes("lose-send-answer", topic):
                self._note("lose-send-answer", topic=topic)
                return handler(request, _Heard(call, lambda answer: call.fail(_lost())))
            answer = handler(request, call)
            is_taken = answer is LATER or answer.status.code == v2.OK
            if is_taken and _may_be_twice(request) and self._happens("duplicate"):
                self._note("duplicate", topic=topic)
                handler(request, _Heard(call))
            return answer

        return send

    def _receive_message(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        def receive(request: v2.ReceiveMessageRequest, stream: Stream) -> None:
            handler(request, _Received(self, table, request, stream))

        return receive

    def _ack_message(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        def acknowledge(request: v2.AckMessageRequest, call: Call) -> Any:
            topic, group = request.topic.name, request.group.name
            is_next = self._takes("lose-ack", topic, group)
            if (is_next or self._redelivers(request)) and self._hand_back(
                table,
                call,
                request.group,
                request.topic,
                [e.receipt_handle for e in request.entries],
            ):
                self._note("lose-ack" if is_next else "redeliver", topic=topic, group=group)
                entries = [
                    v2.AckMessageResultEntry(
                        message_id=one.message_id, receipt_handle=one.receipt_handle, status=OK
                    )
                    for one in request.entries
                ]
                return v2.AckMessageResponse(status=OK, entries=entries)
            return self._perhaps_late(handler, request, call, group)

        return acknowledge

    def _redelivers(self, request: v2.AckMessageRequest) -> bool:
        """Is this acknowledgement to be lost, and none of its messages was delivered too often for that?"""
        if not self._happens("redeliver") or not request.entries:
            return False
        keys = [(request.group.name, request.topic.name, one.message_id) for one in request.entries]
        counts = [self._redelivered.get(key, 0) for key in keys]
        if max(counts) >= REDELIVERIES_MAX or not all(key[2] for key in keys):
            return False
        for key, count in zip(keys, counts, strict=True):
            self._redelivered[key] = count + 1
        while len(self._redelivered) > _COUNTED_MAX:
            self._redelivered.popitem(last=False)
        return True

    def _hand_back(
        self,
        table: MethodTable,
        call: CallContext,
        group: v2.Resource,
        topic: v2.Resource,
        handles: list[str],
    ) -> bool:
        """Redeliver the messages of HANDLES at once, without counting an attempt; return whether all are."""
        change = table[f"{_V2}ChangeInvisibleDuration"].handler
        done = 0
        for handle in handles:
            request = v2.ChangeInvisibleDurationRequest(
                group=group, topic=topic, receipt_handle=handle, suspend=True
            )
            request.invisible_duration.SetInParent()
            answer = change(request, _Heard(call))
            done += answer is LATER or answer.status.code == v2.OK
        return done == len(handles)

    def _is_ordered(self, table: MethodTable, call: CallContext, group: str) -> bool:
        groups = table[f"{_V1}ListGroups"].handler(pb.GroupListRequest(), call).groups
        return any(one.name == group and one.order for one in groups)

    def _perhaps_late(
        self, handler: Callable[..., Any], request: Message, call: Call, group: str
    ) -> Any:
        """Do as HANDLER does, perhaps later, but nothing of GROUP before what came before it."""
        loop = asyncio.get_running_loop()
        last_s = self._due_s.get(group, 0.0)
        if self._happens("late-ack"):
            self._note("late-ack", group=group)
            random = self._course.randoms["late-ack"]
            due_s = max(loop.time() + random.random() * LATE_S, last_s)
        elif last_s > loop.time():
            due_s = last_s
        else:
            self._due_s.pop(group, None)
            return handler(request, call)
        # Those of one instant would be called in any order.
        self._due_s[group] = due_s + 1e-6
        loop.call_at(due_s, _answer, handler, request, call)
        return LATER

    # --- own clients

    def _produce(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        return lambda stream: _Produced(self, handler, stream)

    def _fetch(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        def fetch(stream: Stream) -> Any:
            fetched = _Fetched(self, handler, stream)
            self._fetching.add(fetched)
            return fetched

        return fetch

    def _commit_offsets(self, handler: Callable[..., Any], table: MethodTable) -> Any:
        def commit(request: pb.CommitOffsetsRequest, call: Call) -> Any:
            answer = handler(request, call)
            for one in self._moved_back(request):
                asked = pb.QueueOffsetsRequest(
                    queues=[pb.QueueId(topic=one.topic, queue=one.queue)]
                )

                def move(ends: object, one: pb.GroupOffset = one) -> None:
                    if isinstance(ends, pb.QueueOffsetsReply):
                        least = ends.offsets[0].min_offset
                        self._move_back(handler, call, request.group, one, least)

                table[f"{_V1}QueueOffsets"].handler(asked, _Heard(call, move))
            return answer

        def perhaps_late(request: pb.CommitOffsetsRequest, call: Call) -> Any:
            if request.force or request.moved_by or not all(one.lease for one in request.offsets):
                return handler(request, call)
            return self._perhaps_late(commit, request, call, request.group)

        return perhaps_late

    def _moved_back(self, request: pb.CommitOffsetsRequest) -> list[pb.GroupOffset]:
        """Return which offsets of a commit that was made are to be lost."""
        rows = list(request.offsets)
        chosen = [one for one in rows if self._takes("lose-ack", one.topic, request.group)]
        if not chosen and rows and self._happens("redeliver"):
            return [self._course.randoms["redeliver"].choice(rows)]
        return chosen

    def _move_back(
        self,
        handler: Callable[..., Any],
        call: Call,
        group: str,
        committed: pb.GroupOffset,
        min_offset: int,
    ) -> None:
        """Move GROUP to a few messages before what it COMMITTED, but never twice before the same one."""
        place = (group, committed.topic, committed.queue)
        back = self._course.randoms["redeliver"].randint(1, _BACK_MAX)
        offset = max(committed.offset - back, self._moved_from.get(place, 0), min_offset)
        if offset >= committed.offset:
            return
        self._moved_from[place] = committed.offset
        self._note("redeliver", topic=committed.topic, group=group, count=committed.offset - offset)
        request = pb.CommitOffsetsRequest(group=group, force=True, moved_by=_TELLS)
        request.offsets.add(topic=committed.topic, queue=committed.queue, offset=offset)
        handler(request, _Heard(call))
        # A consumer that waits for more would get it only when that wait is over.
        for fetched in list(self._fetching):
            fetched.turn_away(place)


def _answer(handler: Callable[..., Any], request: Message, call: Call) -> None:
    if call.cancelled:
        return
    try:
        answer = handler(request, call)
    except PocketMQError as error:
        call.fail(error)
        return
    if answer is not LATER:
        call.reply(answer)


def _lost() -> ConnectionLost:
    return ConnectionLost(f"{_TELLS}: the connection breaks, ask again")


def _may_be_twice(request: v2.SendMessageRequest) -> bool:
    once = (v2.DELAY, v2.TRANSACTION)
    return all(
        one.system_properties.message_type not in once
        and not one.system_properties.HasField("delivery_timestamp")
        for one in request.messages
    )


class _Heard(Call):
    """A call of the one who ASKED, whose answer ANSWERED hears instead."""

    __slots__ = ("_answered", "_asked")

    def __init__(
        self, asked: CallContext, answered: Callable[[object], object] = lambda answer: None
    ) -> None:
        super().__init__()
        self._asked = asked
        self._answered = answered

    @property
    def peer(self) -> str:
        return self._asked.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._asked.metadata

    @property
    def deadline_ms(self) -> int | None:
        return self._asked.deadline_ms

    def add_trailing(self, name: str, value: str) -> None:
        """Leave it out."""

    def reply(self, message: Message) -> None:
        self._answered(message)

    def fail(self, error: RpcError) -> None:
        self._answered(error)


class _Outgoing:
    """The outgoing half of STREAM, with all that it has; once it was cut off nothing follows."""

    def __init__(self, faults: Faults, stream: Stream) -> None:
        self._faults = faults
        self._stream = stream
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._stream.finish()

    def fail(self, error: RpcError) -> None:
        if not self._is_over:
            self._is_over = True
            self._stream.fail(error)

    def answer(self, reply: Message) -> None:
        """Send REPLY, unless the stream is over."""
        if not self._is_over:
            self._stream.send(reply)


class _Received(_Outgoing):
    """The answer to a receive, which leaves as a whole."""

    #: What is held here has not left: if the stream breaks, all of it is redelivered.
    queued_bytes = 0

    def __init__(
        self,
        faults: Faults,
        table: MethodTable,
        request: v2.ReceiveMessageRequest,
        stream: Stream,
    ) -> None:
        super().__init__(faults, stream)
        self._table = table
        self._request = request
        self._held: list[v2.ReceiveMessageResponse] = []

    def send(self, reply: v2.ReceiveMessageResponse) -> None:
        held = v2.ReceiveMessageResponse()
        held.CopyFrom(reply)
        self._held.append(held)

    def finish(self) -> None:
        faults, request = self._faults, self._request
        topic, group = request.message_queue.topic.name, request.group.name
        places = [at for at, one in enumerate(self._held) if one.HasField("message")]
        if places and faults._cuts("ReceiveMessage", topic, group):
            handles = [self._held[at].message.system_properties.receipt_handle for at in places]
            resource = request.message_queue.topic
            faults._hand_back(self._table, self._stream, request.group, resource, handles)
            self.fail(_lost())
            return
        is_free = len(places) > 1 and not faults._is_ordered(self._table, self._stream, group)
        if is_free and faults._happens("reorder"):
            self._shuffle(places)
            faults._note("reorder", topic=topic, group=group)
        for one in self._held:
            self._stream.send(one)
        super().finish()

    def _shuffle(self, places: list[int]) -> None:
        messages = [self._held[at] for at in places]
        self._faults._course.randoms["reorder"].shuffle(messages)
        for at, message in zip(places, messages, strict=True):
            self._held[at] = message


class _Produced(_Outgoing):
    """A stream of runs, and of their answers."""

    def __init__(self, faults: Faults, handler: Callable[..., Any], stream: Stream) -> None:
        super().__init__(faults, stream)
        #: Runs whose answer is lost.
        self._lost: set[int] = set()
        #: Runs that are stored twice: is the first answer to one still to come?
        self._twice: dict[int, bool] = {}
        self._topics: dict[int, str] = {}
        self._runs = handler(self)

    def on_message(self, run: pb.ProduceRun) -> Any:
        faults = self._faults
        if faults._takes("refuse-send", run.topic):
            faults._note("refuse-send", topic=run.topic)
            error = Overloaded(f"{_TELLS}: this send is refused, send again")
            self.answer(pb.ProduceReply(run_id=run.run_id, error=to_wire(error)))
            return None
        if not run.no_reply:
            self._topics[run.run_id] = run.topic
            if faults._takes("lose-send-answer", run.topic):
                faults._note("lose-send-answer", topic=run.topic)
                self._lost.add(run.run_id)
        again = None
        if not run.producer_id and not any(word in run.records for word in _WAITING):
            again = pb.ProduceRun()
            again.CopyFrom(run)
        waits = self._runs.on_message(run)
        if again is None or waits is not None or not faults._happens("duplicate"):
            return waits
        faults._note("duplicate", topic=again.topic)
        if not again.no_reply:
            self._twice.setdefault(again.run_id, again.run_id in self._topics)
        return self._runs.on_message(again)

    def send(self, reply: pb.ProduceReply) -> None:
        run_id = reply.run_id
        if run_id in self._twice:
            if self._twice[run_id]:
                self._twice[run_id] = False
            else:
                del self._twice[run_id]
                return
        topic = self._topics.pop(run_id, "")
        if not self._is_over and (run_id in self._lost or self._faults._cuts("Produce", topic)):
            self.fail(_lost())
        self.answer(reply)

    def on_end(self) -> None:
        self._runs.on_end()

    def on_close(self) -> None:
        self._runs.on_close()


class _Fetched(_Outgoing):
    """A stream of fetches, and of their answers; those of one queue follow each other anyway."""

    def __init__(self, faults: Faults, handler: Callable[..., Any], stream: Stream) -> None:
        super().__init__(faults, stream)
        #: Of which group, topic and queue the fetches are that were not answered.
        self._places: dict[int, tuple[str, str, int]] = {}
        #: Members that were notified that they lost the queue.
        self._turned_away: set[int] = set()
        self._waiting = 0
        self._is_finishing = False
        self._fetches = handler(self)

    def on_message(self, request: pb.FetchRequest) -> Any:
        if request.lease:
            place = (request.group, request.topic, request.queue)
            self._places[request.fetch_id] = place
        return self._fetches.on_message(request)

    def turn_away(self, place: tuple[str, str, int]) -> None:
        """Answer who waits for messages of PLACE, which it does not hold any more."""
        lost = LeaseLost(f"{_TELLS}: the queue was put back, ask for it again", group=place[0])
        for fetch_id in [one for one, known in self._places.items() if known == place]:
            del self._places[fetch_id]
            self._turned_away.add(fetch_id)
            self.answer(pb.FetchReply(fetch_id=fetch_id, error=to_wire(lost)))

    def send(self, reply: pb.FetchReply) -> None:
        faults = self._faults
        self._places.pop(reply.fetch_id, None)
        if reply.fetch_id in self._turned_away:
            self._turned_away.discard(reply.fetch_id)
            return
        if not reply.records or not faults._happens("reorder"):
            self._send(reply)
            return
        faults._note("reorder", method="Fetch")
        held = pb.FetchReply()
        held.CopyFrom(reply)
        self._waiting += 1
        later_s = faults._course.randoms["reorder"].random() * _OVERTAKE_S
        asyncio.get_running_loop().call_later(later_s, self._overtaken, held)

    def _overtaken(self, reply: pb.FetchReply) -> None:
        self._waiting -= 1
        self._send(reply)
        if self._is_finishing and not self._waiting:
            super().finish()

    def _send(self, reply: pb.FetchReply) -> None:
        if not self._is_over and reply.records and self._faults._cuts("Fetch", ""):
            self.fail(_lost())
        self.answer(reply)

    def finish(self) -> None:
        self._is_finishing = True
        if not self._waiting:
            super().finish()

    def on_end(self) -> None:
        self._fetches.on_end()

    def on_close(self) -> None:
        self._fetches.on_close()


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultyNetwork(Network):
    """The network of a broker under FAULTS; CARRIERS are those that it made."""

    faults: Faults
    carriers: list[Carrier] = field(default_factory=list)

    def carrier(
        self, table: MethodTable, config: BrokerConfig, certificates: Certificates, page: Page
    ) -> Carrier:
        made = Network.carrier(self, self.faults.wrap(table), config, certificates, page)
        self.carriers.append(made)
        return made
