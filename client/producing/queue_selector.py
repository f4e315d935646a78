"""The choice of a queue for messages that do not name one.

    "round-robin"     one queue after the other (the default)
    "sticky"          the same queue until a batch of full size went there: fewer, larger batches
    "least-latency"   fast brokers get more, failing ones are left alone for a while
    "key-hash"        mmh3 of the message's first key, modulo the queues
    "java-hash"       |String.hashCode| of the first key, modulo the queues: the same queue as
                      SelectMessageQueueByHash of Apache RocketMQ
    an object         the application's own QueueSelector

A message's own `queue` takes precedence over all of these, and so does its `sharding_key`: Apache RocketMQ's proxy
places message groups by the same consistent hash.

By a hash, the same key always gets the same queue, so that its messages keep their order. Queues are sorted by broker
name, then by number, as in Apache RocketMQ's clients.

**When a topic gets more queues**, a modulo moves nearly all keys, the consistent hash only as many as the new queues
get. Messages under way may then be read after later ones: if order matters, let the old queues run empty first.

A lost broker keeps its queues until the name servers drop it, for FIFO topics after an hour. Until then its messages
wait for it: another queue would not keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from random import Random
from typing import Final, Literal, Protocol

import mmh3

from ...proto.clock import Clock, SystemClock
from ...proto.errors import ConfigError, NotWritable, PocketMQError
from ...proto.java_hash import consistent_bucket, java_hash
from ..message import Message
from ..queue import Queue, find_queue
from ..routes import Route

QueueSelectorName = Literal["round-robin", "sticky", "least-latency", "key-hash", "java-hash"]
QUEUE_SELECTORS: Final = ("round-robin", "sticky", "least-latency", "key-hash", "java-hash")

_BY_BROKER: Final = attrgetter("broker", "number")


class QueueSelector(Protocol):
    """Chooses a queue for messages that do not name one.

    A choice for a *batch*, like the round robin, is asked once per batch: messages that arrive while a batch of their
    topic is open join it. Otherwise a batch of a thousand messages would become one fragment per queue. A choice for
    each message, for example by key, is asked for every one, which costs time in `send_many`.

    A choice may have a method `on_result(queue, latency_ms, error)`. It is called after each request that brings a
    batch to a broker, with the error or None; not for atomic commits, whose broker is given.
    """

    #: True: asked for the first message of a run; False: for each message.
    for_a_run: bool

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        """Choose one of QUEUES, of which there is at least one, for MESSAGE or the batch that it opens."""
        ...


class RoundRobin:
    """One queue after the other, topic by topic, from a random one on."""

    for_a_run = True

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._next: dict[str, int] = {}

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        turn = self._next.get(message.topic)
        if turn is None:
            turn = self._random.randrange(len(queues))
        self._next[message.topic] = turn + 1
        return queues[turn % len(queues)]


class StickyChoice:
    """The same queue of a topic until RUN_BYTES have gone there, or a request to it failed; then the next."""

    for_a_run = True

    def __init__(self, run_bytes: int, random: Random | None = None) -> None:
        self._run_bytes = run_bytes
        self._round = RoundRobin(random)
        self._queue: dict[str, Queue] = {}
        self._bytes: dict[Queue, int] = {}

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        queue = self._queue.get(message.topic)
        if queue is None or queue not in queues:
            queue = self._queue[message.topic] = self._round.choose(message, queues)
        return queue

    def on_added(self, queue: Queue, size_bytes: int) -> None:
        """Learn that SIZE_BYTES more will go to QUEUE."""
        if self._queue.get(queue.topic) != queue:
            return
        total = self._bytes.get(queue, 0) + size_bytes
        if total >= self._run_bytes:
            self._leave(queue)
        else:
            self._bytes[queue] = total

    def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
        """Learn that a request to QUEUE failed with ERROR, or did not."""
        if error is not None:
            self._leave(queue)

    def _leave(self, queue: Queue) -> None:
        self._bytes.pop(queue, None)
        if self._queue.get(queue.topic) == queue:
            del self._queue[queue.topic]


@lru_cache(maxsize=1024)
def in_order(queues: tuple[Queue, ...]) -> list[Queue]:
    """Return QUEUES in the order that all here count by."""
    return sorted(queues, key=_BY_BROKER)


class KeyHash:
    """By mmh3 of the first key; a message without a key goes to the next queue in turn."""

    for_a_run = False

    def __init__(self, random: Random | None = None) -> None:
        """RANDOM: where the turn of messages without a key begins."""
        self._turn = (random or Random()).getrandbits(16)

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        row = in_order(tuple(queues))
        if not message.keys:
            self._turn += 1
            return row[self._turn % len(row)]
        return row[self.hash(message.keys[0]) % len(row)]

    def hash(self, key: str) -> int:
        """Return a number ≥ 0 for KEY."""
        return mmh3.hash(key.encode("utf-8", "surrogatepass"), signed=False)


class JavaHash(KeyHash):
    """By Java's String.hashCode of the first key, without its sign; a message without a key goes round."""

    def hash(self, key: str) -> int:
        return abs(java_hash(key))


def sharded_queue(sharding_key: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES, of which there is at least one, for SHARDING_KEY."""
    row = in_order(tuple(queues))
    return row[consistent_bucket(java_hash(sharding_key), len(row))]


def prioritized_queue(priority: int, broker: str, queues: Sequence[Queue]) -> Queue:
    """Return the queue of BROKER for PRIORITY: the one with this number, or the last, as RocketMQ's broker does.

    BROKER has at least one of QUEUES.
    """
    row = [queue for queue in in_order(tuple(queues)) if queue.broker == broker]
    return row[min(priority, len(row) - 1)]


def queue_selector(
    wanted: QueueSelectorName | QueueSelector, *, clock: Clock, random: Random, run_bytes: int
) -> QueueSelector:
    """Return the choice that is WANTED by its name; an object is returned as it is."""
    if not isinstance(wanted, str):
        return wanted
    match wanted:
        case "round-robin":
            return RoundRobin(random)
        case "sticky":
            return StickyChoice(run_bytes, random)
        case "least-latency":
            return LeastLatency(clock)
        case "key-hash":
            return KeyHash(random)
        case "java-hash":
            return JavaHash(random)


def check_queue_selector(wanted: object) -> None:
    """Raise ConfigError for what is neither a name nor an object that chooses."""
    if isinstance(wanted, str):
        known = wanted in QUEUE_SELECTORS
    else:
        known = callable(getattr(wanted, "choose", None)) and hasattr(wanted, "for_a_run")
    if not known:
        raise ConfigError(
            f"queue_selector is {wanted!r}, but must be one of {', '.join(QUEUE_SELECTORS)}, or an object with"
            " choose(message, queues) and for_a_run",
            field="queue_selector",
            value=wanted,
        )


def queue_for(message: Message, route: Route, choice: QueueSelector) -> Queue:
    """Return the queue that MESSAGE names, or where its key or priority leads, or else what CHOICE says."""
    queues = route.writable
    wanted = message.queue
    if wanted is not None:
        return find_queue(wanted, route.topic, queues)
    if not queues:
        raise NotWritable(
            f"topic {route.topic!r} has no queue that takes messages: see its permission",
            topic=route.topic,
        )
    if message.sharding_key is not None:
        return sharded_queue(message.sharding_key, queues)
    chosen = choice.choose(message, queues)
    if message.priority is not None:
        return prioritized_queue(message.priority, chosen.broker, queues)
    return chosen


#: A request that takes this long lags, whatever the others do.
LAG_MS: Final = 550
_LAGS_MS: Final = (LAG_MS, 1_800, 3_000, 5_000, 15_000)
_SPANS_MS: Final = (2_000, 5_000, 6_000, 10_000, 30_000)
LEAST_SHARE: Final = 1 / 16
#: Differences below this are noise.
_FLOOR_MS: Final = 5.0
#: What the newest request weighs in the mean.
_NEWEST: Final = 0.25


@dataclass(slots=True)
class _Broker:
    """What is known of one broker."""

    #: The mean of its last requests; 0: none yet.
    latency_ms: float = 0.0
    failures: int = 0
    #: When it is probed next; None: it does well.
    probe_at_ms: int | None = None
    span_ms: int = 0
    #: A probe is out.
    probing: bool = False

    def leave_alone(self, now_ms: int, span_ms: int, *, probing: bool = False) -> None:
        self.probing = probing
        self.span_ms = span_ms
        self.probe_at_ms = now_ms + span_ms


@dataclass(slots=True)
class _Round:
    """Where the turn is in one topic."""

    queues: Sequence[Queue]
    by_broker: dict[str, list[Queue]]
    turns: dict[str, int] = field(default_factory=dict)
    credit: dict[str, float] = field(default_factory=dict)

    def next_of(self, broker: str) -> Queue:
        turn = self.turns.get(broker, -1) + 1
        self.turns[broker] = turn
        row = self.by_broker[broker]
        return row[turn % len(row)]


class LeastLatency:
    """Prefers fast brokers. It keeps a few numbers for each broker and topic that it has seen.

    Brokers get shares by latency. One that is up to twice as slow as the fastest (below 10 ms: any) gets a full share,
    slower ones proportionally less, but at least 1/16. Within a broker, the queues take turns.

    A broker is *left alone* when a request to it fails (a retriable error), or takes LAG_MS or more:

        latency of one request, at least (ms)   550     1,800   3,000   5,000   15,000
        left alone for (ms)                     2,000   5,000   6,000   10,000  30,000

    Consecutive failures climb the second line from its start. After that time, one batch goes there as a *probe*, and
    no other before its result or the end of the next time. A result below LAG_MS restores the full share; another one
    leaves the broker alone again. If all brokers are left alone, all are used. (Apache RocketMQ's latency fault
    tolerance has such a table, but no shares and no single probes.)
    """

    for_a_run = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._brokers: dict[str, _Broker] = {}
        self._rounds: dict[str, _Round] = {}

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        turn = self._rounds.get(message.topic)
        if turn is None or turn.queues is not queues:
            turn = self._rounds[message.topic] = _Round(queues, _grouped(queues))
        broker = self._to_probe(turn) or self._next_broker(turn)
        return turn.next_of(broker)

    def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
        """Learn that a request to QUEUE took LATENCY_MS and ended with ERROR, or well.

        An error that is not the broker's fault, like a topic that is not there, says nothing of it.
        """
        broker = self._brokers.setdefault(queue.broker, _Broker())
        now_ms = self._clock.now_ms()
        if error is not None:
            # What left before the first failure and fails now as well says nothing new.
            if error.retriable and (broker.probe_at_ms is None or broker.probing):
                broker.leave_alone(now_ms, _SPANS_MS[min(broker.failures, len(_SPANS_MS) - 1)])
                broker.failures += 1
            return
        span_ms = _span_ms(latency_ms)
        if span_ms:
            broker.latency_ms = latency_ms
            broker.leave_alone(now_ms, span_ms)
            return
        if broker.probe_at_ms is not None or not broker.latency_ms:
            broker.latency_ms = latency_ms
        else:
            broker.latency_ms += _NEWEST * (latency_ms - broker.latency_ms)
        broker.failures = 0
        broker.probe_at_ms = None
        broker.probing = False

    def _to_probe(self, turn: _Round) -> str | None:
        """Return a broker whose time to be left alone is over; it is left alone again until the result."""
        now_ms = self._clock.now_ms()
        for name in turn.by_broker:
            broker = self._brokers.get(name)
            probe_at_ms = None if broker is None else broker.probe_at_ms
            if broker is not None and probe_at_ms is not None and now_ms >= probe_at_ms:
                broker.leave_alone(now_ms, broker.span_ms, probing=True)
                return name
        return None

    def _next_broker(self, turn: _Round) -> str:
        """Return the next broker such that each gets its share, evenly spread (smooth weighted round robin)."""
        names = [name for name in turn.by_broker if not self._is_left_alone(name)]
        names = names or list(turn.by_broker)
        if len(names) == 1:
            return names[0]
        shares = self._shares(names)
        credit = turn.credit
        for name, share in zip(names, shares, strict=True):
            credit[name] = credit.get(name, 0.0) + share
        chosen = max(names, key=credit.__getitem__)
        credit[chosen] -= sum(shares)
        return chosen

    def _is_left_alone(self, name: str) -> bool:
        broker = self._brokers.get(name)
        return broker is not None and broker.probe_at_ms is not None

    def _shares(self, names: Sequence[str]) -> list[float]:
        known = [self._brokers[name].latency_ms if name in self._brokers else 0.0 for name in names]
        fastest = max(min((ms for ms in known if ms), default=_FLOOR_MS), _FLOOR_MS)
        return [max(LEAST_SHARE, min(1.0, 2 * fastest / ms)) if ms else 1.0 for ms in known]


def _span_ms(latency_ms: float) -> int:
    """Return for how long a broker that took LATENCY_MS is left alone; 0: not at all."""
    for lag_ms, span_ms in zip(reversed(_LAGS_MS), reversed(_SPANS_MS), strict=True):
        if latency_ms >= lag_ms:
            return span_ms
    return 0


def _grouped(queues: Sequence[Queue]) -> dict[str, list[Queue]]:
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    return by_broker
