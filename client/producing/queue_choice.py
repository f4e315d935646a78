"""Which queue a message goes to, when it does not say so itself.

    "round-robin"     one queue after the other (the default)
    "sticky"          stays with a queue until a run of full size has gone there: fewer, larger runs
    "least-latency"   fast brokers get more, failing ones are left alone for a while (least_latency.py)
    "key-hash"        by the message's first key, mmh3 (key_hash.py)
    "java-hash"       by the message's first key, as Apache's SelectMessageQueueByHash
    an object         the application's own QueueChoice

A message's own `queue` or `sharding_key` comes before all of these.

A choice *for a run*, like the round robin, is asked once for what travels together: messages that come while a run
of their topic is still open join it, because a round robin over single messages would cut a run of a thousand into one
fragment a queue. Messages that are sent one at a time thus go round the queues one by one, those that are sent at once
go by the run. A choice for each message, for example by key, is asked for every one, and pays for it in `send_many`.

A choice may have a method `on_result(queue, latency_ms, error)`: it is called after each request to a broker, with the
error or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, Literal, Protocol

from ...proto.clock import Clock
from ...proto.errors import ConfigError, NotWritable, PocketMQError
from ..message import Message
from ..queue import Queue, find_queue
from ..routes import Route
from .key_hash import JavaHash, KeyHash, sharded_queue
from .least_latency import LeastLatency

QueueChoiceName = Literal["round-robin", "sticky", "least-latency", "key-hash", "java-hash"]
QUEUE_CHOICES: Final = ("round-robin", "sticky", "least-latency", "key-hash", "java-hash")


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


class Sticky:
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
            return Sticky(run_bytes, random)
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
