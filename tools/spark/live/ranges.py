"""Ranges of queues, and how they are cut for tasks. Pure.

Offsets of many queues, and their JSON form: topic → broker → queue → number. Pure.

    {"orders": {"broker-a": {"0": 23, "1": -1}}}

So they stand in options, and in the checkpoints of Spark, whose values must be primitive and whose keys must be text.

What becomes of messages that were to be read and are not there any more: an error, or a warning.

Reading one range of a queue, as raw records: while one fetch is decoded, the next one is under way.

Without a filter every offset of a range is a message; one that is not there was damaged in the broker's store, or is
gone by retention: that is a loss. A fetch that brings nothing and does not move on is an error, so that a
task never reads for ever.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ....client.queue import Queue
from ....client.received_message import FetchedRun
from ....proto.errors import ConfigError, CorruptRecord, OffsetOutOfRange
from ....proto.gen import pocketmq_v1_pb2 as pb
from ...counted import counted


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """The messages of QUEUE from offset BEGIN up to, and without, END."""

    queue: Queue
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.queue}[{self.begin}, {self.end})"


def ranges_between(begins: Offsets, ends: Offsets) -> list[QueueRange]:
    """Return what lies between BEGINS and ENDS in the queues of both, without the empty ones, in order."""
    return [
        QueueRange(queue, begins[queue], ends[queue])
        for queue in sorted(ends)
        if queue in begins and begins[queue] < ends[queue]
    ]


def cut(
    ranges: Iterable[QueueRange], *, at_least: int = 0, records_max: int | None = None
) -> list[QueueRange]:
    """Return RANGES cut so that none has more than RECORDS_MAX, and that there are AT_LEAST, if there is so much.

    As Kafka's source has it: first by RECORDS_MAX; if these are too few, every range is cut anew, in proportion to its
    size. Parts of a range differ by at most one message.
    """
    whole = [one for one in ranges if one.size]
    parts = [part for one in whole for part in _equal(one, _count(one.size, records_max))]
    if len(parts) >= at_least or not whole:
        return parts
    total = sum(one.size for one in whole)
    counts = [
        max(_count(one.size, records_max), round(at_least * one.size / total)) for one in whole
    ]
    _raise_to(counts, whole, at_least)
    return [
        part
        for one, count in zip(whole, counts, strict=True)
        for part in _equal(one, min(count, one.size))
    ]


def _count(records: int, records_max: int | None) -> int:
    """Return in how many parts RECORDS go."""
    return 1 if records_max is None else -(-records // records_max)


def _raise_to(counts: list[int], ranges: Sequence[QueueRange], at_least: int) -> None:
    """Raise COUNTS of parts, largest parts first, until there are AT_LEAST or nothing can be cut any more."""
    missing = at_least - sum(
        min(count, one.size) for count, one in zip(counts, ranges, strict=True)
    )
    while missing > 0:
        index = max(range(len(ranges)), key=lambda one: ranges[one].size / counts[one])
        if counts[index] >= ranges[index].size:
            return
        counts[index] += 1
        missing -= 1


def _equal(one: QueueRange, count: int) -> list[QueueRange]:
    """Return ONE in COUNT parts that differ by at most one message."""
    cuts = [one.begin + one.size * part // count for part in range(count + 1)]
    return [QueueRange(one.queue, low, high) for low, high in pairwise(cuts)]


# ---------------------------------------------------------------- offsets of many queues, and their JSON form


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


class RecordMark(NamedTuple):
    """Which message a position follows: where its record is in the broker's log, and when it was stored.

    A queue whose topic was deleted and created again counts from 0 again; its messages have other marks.
    """

    log_offset: int
    stored_ms: int


_LOG: Final = "/log"
_STORED: Final = "/ms"


def to_checkpoint(offsets: Offsets, marks: Mapping[Queue, RecordMark]) -> Tree:
    """Return what a checkpoint holds: OFFSETS as a tree, and beside the number of a queue its mark, if it has one.

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


# ---------------------------------------------------------------- messages that are not there any more


logger = logging.getLogger(__name__)


class Losses:
    """Hears of losses: raises if IS_FATAL (option failOnDataLoss), else warns."""

    def __init__(self, is_fatal: bool) -> None:
        self._is_fatal = is_fatal

    def report(self, what: str) -> None:
        """Raise OffsetOutOfRange, or warn: WHAT says which messages were to be read, and why they are not there."""
        if self._is_fatal:
            raise OffsetOutOfRange(
                f"{what}: messages that were to be read are lost; failOnDataLoss=false reads on without them",
                field="failOnDataLoss",
            )
        logger.warning("messages that were to be read are lost what=%s", what)


# ---------------------------------------------------------------- reading one range of a queue, as raw records


class Fetcher(Protocol):
    """Fetches records; `LiveCluster` does."""

    def fetch(
        self, queue: Queue, offset: int, count: int, wanted: pb.Filter | None
    ) -> Future[pb.FetchReply]:
        """Ask for up to COUNT messages of QUEUE from OFFSET on, and return what will hold the answer."""
        ...


class Fetched(NamedTuple):
    """RUN's messages with index BEGIN up to, and without, END."""

    run: FetchedRun
    begin: int
    end: int


def fetched(
    fetcher: Fetcher, wanted_range: QueueRange, wanted: pb.Filter | None, losses: Losses
) -> Iterator[Fetched]:
    """Yield the messages of WANTED_RANGE that the filter WANTED lets through (None: all), in order, each once."""
    queue, at, end = wanted_range.queue, wanted_range.begin, wanted_range.end
    pending = fetcher.fetch(queue, at, end - at, wanted) if at < end else None
    while pending is not None:
        try:
            reply = pending.result()
        except OffsetOutOfRange as error:
            at = _behind_loss(error, queue, at, end, losses)
            pending = fetcher.fetch(queue, at, end - at, wanted) if at < end else None
            continue
        behind = min(reply.next_offset, end)
        if behind <= at:
            raise CorruptRecord(
                f"{queue}: the broker brings nothing from offset {at} on, but {counted(end - at, 'message')} must"
                " follow",
                field="next_offset",
                value=reply.next_offset,
            )
        pending = fetcher.fetch(queue, behind, end - behind, wanted) if behind < end else None
        part = _part(FetchedRun(queue.broker, reply.records), at, end)
        if wanted is None and part.end - part.begin < behind - at:
            missing = behind - at - (part.end - part.begin)
            losses.report(
                f"{queue}: {counted(missing, 'message')} between offsets {at} and {behind} not in the log"
            )
        if part.begin < part.end:
            yield part
        at = behind


def _part(run: FetchedRun, begin: int, end: int) -> Fetched:
    """Return the messages of RUN from offset BEGIN up to END."""
    offsets = run.columns.queue_offset
    return Fetched(run, int(offsets.searchsorted(begin)), int(offsets.searchsorted(end)))


def _behind_loss(error: OffsetOutOfRange, queue: Queue, at: int, end: int, losses: Losses) -> int:
    """Return where to go on after ERROR; hear of the loss."""
    least = int(error.details.get("min_offset", end))
    losses.report(f"{queue}: {error.message}")
    return min(max(least, at + 1), end)
