"""Offsets of many queues, and their JSON form: topic → broker → queue → number. Pure.

    {"orders": {"broker-a": {"0": 23, "1": -1}}}

So they stand in options, and in the checkpoints of Spark, whose values must be primitive and whose keys must be text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from ....client.queue import Queue
from ....proto.errors import ConfigError

#: Stand for a number in options: where the queue begins, where it ends.
EARLIEST: Final = -2
LATEST: Final = -1
OFFSET_MAX: Final = (1 << 63) - 1

Offsets: TypeAlias = Mapping[Queue, int]
Tree: TypeAlias = dict[str, dict[str, dict[str, int]]]


def to_tree(offsets: Offsets) -> Tree:
    """Return OFFSETS as nested dictionaries, ordered by topic, broker and queue."""
    tree: Tree = {}
    for queue in sorted(offsets):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.number)] = offsets[queue]
    return tree


def from_tree(tree: object, field: str, *, least: int = 0) -> dict[Queue, int]:
    """Return the offsets in TREE; raise ConfigError, which names FIELD and the place, for what is none.

    LEAST is the smallest number allowed: 0, or EARLIEST where it may stand.
    """
    found: dict[Queue, int] = {}
    for topic, brokers in _children(tree, field, "topic → broker → queue → number"):
        for broker, numbers in _children(brokers, f"{field}.{topic}", "broker → queue → number"):
            place = f"{field}.{topic}.{broker}"
            for number, offset in _children(numbers, place, "queue → number"):
                queue = Queue(topic, broker, _queue_number(number, place))
                found[queue] = _offset(offset, f"{place}.{number}", least)
    return found


def parse_offsets(text: str, field: str, *, least: int = 0) -> dict[Queue, int]:
    """Return the offsets that the JSON TEXT of option FIELD says; raise ConfigError for anything else."""
    return from_tree(parse_json(text, field), field, least=least)


def parse_assignment(text: str, field: str) -> tuple[Queue, ...]:
    """Return the queues that TEXT names, {"T": {"broker-a": [0, 1]}}, in order; raise ConfigError for anything else."""
    found: set[Queue] = set()
    for topic, brokers in _children(
        parse_json(text, field), field, "topic → broker → list of queues"
    ):
        for broker, numbers in _children(brokers, f"{field}.{topic}", "broker → list of queues"):
            place = f"{field}.{topic}.{broker}"
            if not isinstance(numbers, list) or not numbers:
                raise ConfigError(
                    f"{place} is {_short(numbers)}: write a list of queue numbers", field=field
                )
            found.update(
                Queue(topic, broker, _queue_number(str(number), place)) for number in numbers
            )
    if not found:
        raise ConfigError(
            f'{field} names no queue: write {{"topic": {{"broker": [0, 1]}}}}', field=field
        )
    return tuple(sorted(found))


def parse_json(text: str, field: str) -> Any:
    """Return what the JSON TEXT of option FIELD says; raise ConfigError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{field}: {_short(text)} is no JSON ({error})", field=field, value=text[:64]
        ) from None


def named(queues: Iterable[Queue], most: int = 8) -> str:
    """Return the names of QUEUES for a sentence: MOST of them, and how many more there are."""
    ordered = sorted(queues)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(map(str, ordered[:most])) + more


def _children(value: object, place: str, shape: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is {_short(value)}: write {shape}", field=place)
    return list(value.items())


def _queue_number(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(
            f"{place}: {text[:32]!r} is no queue number: queues count from 0", field=place
        )
    return int(text)


def _offset(value: object, place: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= OFFSET_MAX:
        special = f" ({EARLIEST} earliest, {LATEST} latest)" if least < 0 else ""
        raise ConfigError(
            f"{place} is {_short(value)}: write a whole number from {least} on{special}",
            field=place,
            limit=least,
        )
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:63] + "…"
