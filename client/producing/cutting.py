"""Cuts what `send_many` is given into parts that travel in one run: of one topic, for one place, within the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

from ..config import ProducerConfig
from ..message import Message
from .bodies import Bodies
from .run import RECORD_OVERHEAD, record_size

PLACE: Final = attrgetter("topic", "queue", "sharding_key")


def parts(
    messages: Sequence[Message], config: ProducerConfig, size_of: Callable[[Message], int]
) -> Iterator[tuple[Sequence[Message], int]]:
    """Cut MESSAGES into parts for one topic and queue that fit a run; yield them with their sizes.

    SIZE_OF returns the size of one message; it raises MessageTooLarge for one that travels in no run.
    """
    limit, count_max = config.run_bytes_max, config.batch_messages_max
    if isinstance(messages, Bodies):
        overhead = RECORD_OVERHEAD + len(messages.pattern.topic)
        for bodies, size_bytes in messages.cut(overhead, limit, count_max):
            yield bodies, size_of(bodies[0]) if len(bodies) == 1 else size_bytes
        return
    for _, group in groupby(messages, PLACE):
        count = count_max
        while part := list(islice(group, count)):
            size_bytes = sum(map(record_size, part))
            yield from _sized(part, size_bytes, limit, size_of)
            # The next part fits at once if its messages are like these.
            count = max(1, min(count_max, limit * len(part) // size_bytes - 1))


def _sized(
    messages: list[Message], size_bytes: int, limit: int, size_of: Callable[[Message], int]
) -> Iterator[tuple[list[Message], int]]:
    """Halve MESSAGES, of together SIZE_BYTES, until the parts are smaller than LIMIT."""
    if len(messages) == 1:
        yield messages, size_of(messages[0])
        return
    if size_bytes < limit:
        yield messages, size_bytes
        return
    middle = len(messages) // 2
    first_bytes = sum(map(record_size, messages[:middle]))
    yield from _sized(messages[:middle], first_bytes, limit, size_of)
    yield from _sized(messages[middle:], size_bytes - first_bytes, limit, size_of)
