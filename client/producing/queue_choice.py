"""The choice of a queue for messages that do not name one.

    "round-robin"     one queue after the other (the default)
    "sticky"          stays with a queue until a run of full size has gone there: fewer, larger runs
    "least-latency"   fast brokers get more, failing ones are left alone for a while (least_latency.py)
    "key-hash"        mmh3 of the message's first key, modulo the queues
    "java-hash"       |String.hashCode| of the first key, modulo the queues: the queue that Apache's
                      SelectMessageQueueByHash takes for the same text
    an object         the application's own QueueChoice

A message's own `queue` comes before all of these, and so does its `sharding_key`: by the consistent hash by which
Apache's proxy places a message group, so that both agree.

A choice *for a run*, like the round robin, is asked once for what travels together: messages that come while a run
of their topic is still open join it, because a round robin over single messages would cut a run of a thousand into one
fragment a queue. Messages that are sent one at a time thus go round the queues one by one, those that are sent at once
go by the run. A choice for each message, for example by key, is asked for every one, and pays for it in `send_many`.

A choice may have a method `on_result(queue, latency_ms, error)`: it is called after each request that brings a run to a
broker, with the error or None; not after those of atomic commits, whose broker is given.

By a hash the same key always goes to the same queue, so that what belongs together keeps its order. Queues count in the
order of their broker's name, then of their number, as Apache's clients do.

**When a topic gets more queues**, the modulo moves nearly all keys, the consistent hash only as many as the new queues
get (of 8 queues made 9: a ninth). What is under way then may be read after what follows it: where order matters beyond
that moment, let the old queues run empty first.

A broker that is lost takes its queues along only once the name servers drop it; until then its messages wait for it,
because another queue would not keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from random import Random
from typing import Final, Literal, Protocol

import mmh3

from ...proto.clock import Clock
from ...proto.errors import ConfigError, NotWritable, PocketMQError
from ...proto.java_hash import consistent_bucket, java_hash
from ..message import Message
from ..queue import Queue, find_queue
from ..routes import Route
from .least_latency import LeastLatency

QueueChoiceName = Literal["round-robin", "sticky", "least-latency", "key-hash", "java-hash"]
QUEUE_CHOICES: Final = ("round-robin", "sticky", "least-latency", "key-hash", "java-hash")

_BY_BROKER: Final = attrgetter("broker", "number")


class QueueChoice(Protocol):
    """Chooses one of QUEUES, of which there is at least one, for MESSAGE or the run that it opens."""

    #: True: asked for the first message of a run; False: for each message.
    for_a_run: bool

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue: ...


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


def queue_choice(
    wanted: QueueChoiceName | QueueChoice, *, clock: Clock, random: Random, run_bytes: int
) -> QueueChoice:
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


def check_queue_choice(wanted: object) -> None:
    """Raise ConfigError for what is neither a name nor an object that chooses."""
    if isinstance(wanted, str):
        known = wanted in QUEUE_CHOICES
    else:
        known = callable(getattr(wanted, "choose", None)) and hasattr(wanted, "for_a_run")
    if not known:
        raise ConfigError(
            f"queue_choice is {wanted!r}, but must be one of {', '.join(QUEUE_CHOICES)}, or an object with"
            " choose(message, queues) and for_a_run",
            field="queue_choice",
            value=wanted,
        )


def queue_for(message: Message, route: Route, choice: QueueChoice) -> Queue:
    """Return the queue that MESSAGE names, or where its sharding key leads, or else what CHOICE says."""
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
    return choice.choose(message, queues)
