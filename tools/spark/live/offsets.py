"""Offsets of many queues, and their JSON form: topic → broker → queue → number. Pure.

    {"orders": {"broker-a": {"0": 23, "1": -1}}}

Options have this form, and so have Spark's checkpoints, whose values must be primitive and whose keys must be text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ....client.queue import Queue
from ....proto.errors import ConfigError

#: Used instead of a number in options: the beginning and the end of a queue.
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

    LEAST is the smallest number allowed: 0, or EARLIEST where it is allowed.
    """
    found: dict[Queue, int] = {}
    for topic, brokers in _children(tree, field, "topic → broker → queue → number"):
        for broker, numbers in _children(brokers, f"{field}.{topic}", "broker → queue → number"):
            place = f"{field}.{topic}.{broker}"
            for number, offset in _children(numbers, place, "queue → number"):
                queue = Queue(topic, broker, _queue_number(number, place))
                found[queue] = _offset(offset, f"{place}.{number}", least)
    return found


class RecordMark(NamedTuple):
    """Which message a position follows: where its record is in the broker's log, and when it was stored.

    A queue whose topic was deleted and created again counts from 0 again; its messages have other marks.
    """

    log_offset: int
    stored_ms: int


_LOG: Final = "/log"
_STORED: Final = "/ms"


def to_checkpoint(offsets: Offsets, marks: Mapping[Queue, RecordMark]) -> Tree:
    """Return what a checkpoint holds: OFFSETS as a tree, and next to the number of a queue its mark, if it has one.

    {"orders": {"broker-a": {"0": 23, "0/log": 81920, "0/ms": 1700000000000}}}
    """
    tree = to_tree(offsets)
    for queue, mark in marks.items():
        if queue in offsets:
            numbers = tree[queue.topic][queue.broker]
            numbers[f"{queue.number}{_LOG}"] = mark.log_offset
            numbers[f"{queue.number}{_STORED}"] = mark.stored_ms
    return tree


def from_checkpoint(tree: object, field: str) -> tuple[dict[Queue, int], dict[Queue, RecordMark]]:
    """Return the offsets and marks in TREE; checkpoints of earlier versions have no marks."""
    log = from_tree(_only(tree, _LOG), field)
    stored = from_tree(_only(tree, _STORED), field)
    offsets = from_tree(_only(tree, ""), field)
    return offsets, {
        queue: RecordMark(log[queue], stored[queue]) for queue in log if queue in stored
    }


def _only(tree: object, suffix: str) -> object:
    """Return TREE with the numbers alone whose names end in SUFFIX, without it; "": those without any."""
    if not isinstance(tree, dict):
        return tree
    return {
        topic: {
            broker: {
                name.removesuffix(suffix): number
                for name, number in numbers.items()
                if (name.endswith(suffix) if suffix else not name.endswith((_LOG, _STORED)))
            }
            if isinstance(numbers, dict)
            else numbers
            for broker, numbers in brokers.items()
        }
        if isinstance(brokers, dict)
        else brokers
        for topic, brokers in tree.items()
    }


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
            f"{field}: {_short(text)} is not JSON ({error})", field=field, value=text[:64]
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
        raise ConfigError(f"{place}: {text[:32]!r} is not a queue number: 0 or more", field=place)
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
