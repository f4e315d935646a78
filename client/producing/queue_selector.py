"""Queue selectors: they choose a queue for messages that do not name one.

    "round-robin"     one queue after the other (the default)
    "sticky"          the same queue until it got a batch of full size: fewer, larger batches
    "least-latency"   fast brokers get more messages; failing brokers are avoided for a while
    "key-hash"        mmh3 of the message's first key, modulo the queues
    "java-hash"       |String.hashCode| of the first key, modulo the queues: the same queue as
                      SelectMessageQueueByHash of Apache RocketMQ
    an object         a QueueSelector of the application

The `queue` or `sharding_key` of a message takes precedence over all of these. A sharding key is placed by a consistent
hash. The proxy of Apache RocketMQ places message groups by the same hash.

With a hash, the same key always gets the same queue, so that its messages keep their order. Queues are sorted by broker
name, then by number, as in the clients of Apache RocketMQ.

**When a topic gets more queues**, a modulo moves nearly all keys. The consistent hash moves only as many as the new
queues get. Messages of a moved key that are still unread may then be read after later ones. If order matters, wait
until consumers have read the old queues to the end.

A broker that is unavailable keeps its queues until the name servers drop it, for FIFO topics after an hour. Until then
messages of its keys wait for it, because another queue would not keep their order.
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

    A selector *per batch*, like round robin, is called for the first message of a batch. Messages that arrive while a
    batch of their topic is open join that batch, so that a thousand messages are not spread over all queues in small
    pieces. A selector *per message*, for example by key, is called for each message, which costs time in `send_many`.

    A selector may have a method `on_result(queue, latency_ms, error)`. It is called after each request that sends a
    batch to a broker, with the error or None. It is not called for atomic commits, which choose no broker.
    """

    #: True: called for the first message of a batch. False: called for each message.
    for_a_run: bool

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        """Choose one of QUEUES, which is not empty, for MESSAGE or for the batch that MESSAGE opens."""
        ...


class RoundRobin:
    """Takes the queues of each topic one after the other. The first one is random."""

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
    """Takes the same queue of a topic until it got RUN_BYTES, or a request to it failed. Then it takes the next."""

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
        """Note that SIZE_BYTES more will be sent to QUEUE."""
        if self._queue.get(queue.topic) != queue:
            return
        total = self._bytes.get(queue, 0) + size_bytes
        if total >= self._run_bytes:
            self._leave(queue)
        else:
            self._bytes[queue] = total

    def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
        """Note that a request to QUEUE failed with ERROR, or succeeded (None)."""
        if error is not None:
            self._leave(queue)

    def _leave(self, queue: Queue) -> None:
        self._bytes.pop(queue, None)
        if self._queue.get(queue.topic) == queue:
            del self._queue[queue.topic]


@lru_cache(maxsize=1024)
def in_order(queues: tuple[Queue, ...]) -> list[Queue]:
    """Return QUEUES sorted by broker name and number. All hashes count in this order."""
    return sorted(queues, key=_BY_BROKER)


class KeyHash:
    """Selects by mmh3 of the first key. Messages without a key are sent to the queues in turn."""

    for_a_run = False

    def __init__(self, random: Random | None = None) -> None:
        """RANDOM chooses the first queue for messages without a key."""
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
    """Selects by the absolute value of `String.hashCode` (Java) of the first key.

    Messages without a key are sent to the queues in turn.
    """

    def hash(self, key: str) -> int:
        return abs(java_hash(key))


def sharded_queue(sharding_key: str, queues: Sequence[Queue]) -> Queue:
    """Return the one of QUEUES, which is not empty, for SHARDING_KEY."""
    row = in_order(tuple(queues))
    return row[consistent_bucket(java_hash(sharding_key), len(row))]


def prioritized_queue(priority: int, broker: str, queues: Sequence[Queue]) -> Queue:
    """Return the queue of BROKER whose number is PRIORITY, or its last queue, as the broker of RocketMQ does.

    At least one of QUEUES must be of BROKER.
    """
    row = [queue for queue in in_order(tuple(queues)) if queue.broker == broker]
    return row[min(priority, len(row) - 1)]


def queue_selector(
    wanted: QueueSelectorName | QueueSelector, *, clock: Clock, random: Random, run_bytes: int
) -> QueueSelector:
    """Return the selector whose name is WANTED. If WANTED is an object, return it."""
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
    """Raise ConfigError unless WANTED is a known name or an object with the attributes of a QueueSelector."""
    if isinstance(wanted, str):
        known = wanted in QUEUE_SELECTORS
    else:
        known = callable(getattr(wanted, "choose", None)) and hasattr(wanted, "for_a_run")
    if not known:
        raise ConfigError(
            f"queue_selector is {wanted!r}: use one of {', '.join(QUEUE_SELECTORS)}, or an object with"
            " choose(message, queues) and for_a_run",
            field="queue_selector",
            value=wanted,
        )


def queue_for(message: Message, route: Route, choice: QueueSelector) -> Queue:
    """Return the queue that MESSAGE names, or that its sharding key or priority gives, or else that CHOICE selects."""
    queues = route.writable
    wanted = message.queue
    if wanted is not None:
        return find_queue(wanted, route.topic, queues)
    if not queues:
        raise NotWritable(
            f"topic {route.topic!r} has no writable queue: check its permission",
            topic=route.topic,
        )
    if message.sharding_key is not None:
        return sharded_queue(message.sharding_key, queues)
    chosen = choice.choose(message, queues)
    if message.priority is not None:
        return prioritized_queue(message.priority, chosen.broker, queues)
    return chosen


#: A request that takes this long is slow, whatever the latency of the others.
LAG_MS: Final = 550
_LAGS_MS: Final = (LAG_MS, 1_800, 3_000, 5_000, 15_000)
_SPANS_MS: Final = (2_000, 5_000, 6_000, 10_000, 30_000)
LEAST_SHARE: Final = 1 / 16
#: Differences below this are noise.
_FLOOR_MS: Final = 5.0
#: Weight of the newest request in the mean latency.
_NEWEST: Final = 0.25


@dataclass(slots=True)
class _Broker:
    """What is known about one broker."""

    #: Mean latency of its last requests; 0: none yet.
    latency_ms: float = 0.0
    failures: int = 0
    #: When it is probed next; None: it is not avoided.
    probe_at_ms: int | None = None
    span_ms: int = 0
    #: Whether the result of a probe is pending.
    probing: bool = False

    def avoid(self, now_ms: int, span_ms: int, *, probing: bool = False) -> None:
        self.probing = probing
        self.span_ms = span_ms
        self.probe_at_ms = now_ms + span_ms


@dataclass(slots=True)
class _Round:
    """The state of the round robin of one topic."""

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
    """Prefers fast brokers. It keeps a few numbers for each broker and topic.

    Brokers get shares by latency. A broker gets a full share if its mean latency is at most twice that of the fastest,
    or below 10 ms. Slower brokers get proportionally less, but at least 1/16. Within a broker, the queues take turns.

    A broker is *avoided* when a request to it fails with a retriable error, or takes LAG_MS or longer:

        latency of one request, at least (ms)   550     1,800   3,000   5,000   15,000
        avoided for (ms)                        2,000   5,000   6,000   10,000  30,000

    Consecutive failures take the times of the second line one after the other. When the time is over, one batch is sent
    to the broker as a *probe*. No other batch follows before the result of the probe, or before the next time is over.
    A probe that takes less than LAG_MS restores the full share. After any other result the broker is avoided again. If
    all brokers are avoided, all are used. (The latency fault tolerance of Apache RocketMQ has such a table, but neither
    shares nor single probes.)
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
        """Note that a request to QUEUE took LATENCY_MS and failed with ERROR, or succeeded (None).

        Errors that are not retriable, like an unknown topic, are not the broker's fault and do not count.
        """
        broker = self._brokers.setdefault(queue.broker, _Broker())
        now_ms = self._clock.now_ms()
        if error is not None:
            # Failures of other requests that were sent before the first failure count once.
            if error.retriable and (broker.probe_at_ms is None or broker.probing):
                broker.avoid(now_ms, _SPANS_MS[min(broker.failures, len(_SPANS_MS) - 1)])
                broker.failures += 1
            return
        span_ms = _span_ms(latency_ms)
        if span_ms:
            broker.latency_ms = latency_ms
            broker.avoid(now_ms, span_ms)
            return
        if broker.probe_at_ms is not None or not broker.latency_ms:
            broker.latency_ms = latency_ms
        else:
            broker.latency_ms += _NEWEST * (latency_ms - broker.latency_ms)
        broker.failures = 0
        broker.probe_at_ms = None
        broker.probing = False

    def _to_probe(self, turn: _Round) -> str | None:
        """Return a broker whose time is over, to probe it. It is avoided again until the result."""
        now_ms = self._clock.now_ms()
        for name in turn.by_broker:
            broker = self._brokers.get(name)
            probe_at_ms = None if broker is None else broker.probe_at_ms
            if broker is not None and probe_at_ms is not None and now_ms >= probe_at_ms:
                broker.avoid(now_ms, broker.span_ms, probing=True)
                return name
        return None

    def _next_broker(self, turn: _Round) -> str:
        """Return the next broker by smooth weighted round robin, so that each broker gets its share, evenly spread."""
        names = [name for name in turn.by_broker if not self._is_avoided(name)]
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

    def _is_avoided(self, name: str) -> bool:
        broker = self._brokers.get(name)
        return broker is not None and broker.probe_at_ms is not None

    def _shares(self, names: Sequence[str]) -> list[float]:
        known = [self._brokers[name].latency_ms if name in self._brokers else 0.0 for name in names]
        fastest = max(min((ms for ms in known if ms), default=_FLOOR_MS), _FLOOR_MS)
        return [max(LEAST_SHARE, min(1.0, 2 * fastest / ms)) if ms else 1.0 for ms in known]


def _span_ms(latency_ms: float) -> int:
    """Return for how long a broker is avoided after a request that took LATENCY_MS; 0: not at all."""
    for lag_ms, span_ms in zip(reversed(_LAGS_MS), reversed(_SPANS_MS), strict=True):
        if latency_ms >= lag_ms:
            return span_ms
    return 0


def _grouped(queues: Sequence[Queue]) -> dict[str, list[Queue]]:
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    return by_broker
