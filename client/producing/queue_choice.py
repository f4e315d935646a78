"""Which queue a message goes to, when it does not say so itself.

A choice *for a run*, like the round robin, is asked once for what travels together: messages that come while a run
of their topic is still open join it, because a round robin over single messages would cut a run of a thousand into one
fragment a queue. Messages that are sent one at a time thus go round the queues one by one, those that are sent at once
go by the run. A choice for each message, for example by key, is asked for every one, and pays for it in `send_many`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from ...proto.errors import NotWritable
from ..message import Message
from ..queue import Queue, find_queue
from ..routes import Route


class QueueChoice(Protocol):
    """Chooses one of QUEUES, of which there is at least one, for MESSAGE or the run that it opens."""

    #: True: asked for the first message of a run; False: for each message.
    for_a_run: bool

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue: ...


class RoundRobin:
    """One queue after the other, topic by topic, from a random one on."""

    for_a_run = True

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        turn = self._next.get(message.topic)
        if turn is None:
            turn = self._random.randrange(len(queues))
        self._next[message.topic] = turn + 1
        return queues[turn % len(queues)]


def queue_for(message: Message, route: Route, choice: QueueChoice) -> Queue:
    """Return the queue that MESSAGE names, or else what CHOICE says."""
    queues = route.writable
    wanted = message.queue
    if wanted is None:
        if not queues:
            raise NotWritable(
                f"topic {route.topic!r} has no queue that takes messages: see its permission",
                topic=route.topic,
            )
        return choice.choose(message, queues)
    return find_queue(wanted, route.topic, queues)
