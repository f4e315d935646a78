"""Finds copies of half messages in the log at a start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...proto.properties import PRODUCER_GROUP, UNIQ_KEY
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Record, decode_record
from ...proto.record_run import parse_run, starts_of
from ...proto.topics import CHECK_MAX_TIME_TOPIC
from ...store.message_store import MessageStore
from ...store.slices import Slices
from .open_halves import Key, OpenHalf
from .outcomes import Outcome

READ_MESSAGES = 1_000
READ_BYTES = 4 * 1024 * 1024


def slices_from(
    store: MessageStore, topic: str, queue: int, offset: int, *, check_crcs: bool = True
) -> Iterator[Slices]:
    """Yield the messages of QUEUE of TOPIC from OFFSET on; CHECK_CRCS as in `read_queue`."""
    while True:
        low, high = store.queue_bounds(topic, queue)
        offset = max(offset, low)
        if offset >= high:
            return
        slices = store.read_queue(
            topic, queue, offset, READ_MESSAGES, READ_BYTES, check_crcs=check_crcs
        )
        if slices.next_offset == offset:
            return
        yield slices
        offset = slices.next_offset


def find_copies(store: MessageStore, halves: Iterable[OpenHalf]) -> dict[Key, Outcome]:
    """Return the results of those HALVES that were committed or given up, according to the log."""
    since: dict[tuple[str, int], int] = {}
    topics: dict[Key, str] = {}
    for half in halves:
        topics[half.key] = half.topic
        for target in ((half.topic, half.queue), (CHECK_MAX_TIME_TOPIC, 0)):
            since[target] = min(since.get(target, half.log_offset), half.log_offset)
    found: dict[Key, Outcome] = {}
    for (topic, queue), log_offset in since.items():
        for record in _copies(store, topic, queue, log_offset):
            key = record.properties.get(PRODUCER_GROUP, ""), record.properties.get(UNIQ_KEY, "")
            if key not in topics:
                continue
            if topic == CHECK_MAX_TIME_TOPIC:
                found.setdefault(key, Outcome(False, topics[key], given_up=True))
            elif topics[key] == topic:
                found[key] = Outcome.committed_as(record)
    return found


def _copies(store: MessageStore, topic: str, queue: int, log_offset: int) -> Iterator[Record]:
    """Yield the committed or given-up messages of a queue after LOG_OFFSET in the log."""
    entries = store.queues.get(topic, queue)
    if entries is None:
        return
    begin = entries.first_from(log_offset)
    for slices in slices_from(store, topic, queue, begin):
        columns = parse_run(slices.records, starts_of(slices.sizes))
        wanted = columns.well_formed
        if topic != CHECK_MAX_TIME_TOPIC:
            wanted = wanted & (columns.sys_flag & SYS_TRANSACTION == SYS_COMMIT)
        for start in columns.starts[wanted].tolist():
            yield decode_record(slices.records, start)
