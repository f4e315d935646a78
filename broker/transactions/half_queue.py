"""The half queue and the op queue: which transactions are open, and how the others ended (commit or rollback).

At start the queues are read from the last committed offsets. Half messages named by later op messages are resolved.
So is a half message whose committed copy is in the log without an op message, so it cannot be committed twice. If a
power cut took a copy but not its op message, the half message is open again, and is stored again.

Later, all appends to the half queue arrive here. `Progress` commits where the next start begins, as offsets of the
group CID_RMQ_SYS_TRANS in consumerOffset.json, as in Apache RocketMQ:

    half queue   everything below the offset is resolved, or was stored again later
    op queue     everything below the offset names only half messages below that of the half queue

They are committed only once the log is on disk that far. A kill loses some seconds of progress, never a half message.

A transaction may have several half messages: sent twice, or checked. The newest counts; `also` has the older ones.
Memory: about 800 bytes per open half message, 80 MB at the default limit of 100,000, and 5 MB for `Outcomes`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...proto import properties as names
from ...proto.clock import Clock, past_instant
from ...proto.errors import InvalidRecord, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import PRODUCER_GROUP, REAL_TOPIC, TAGS, UNIQ_KEY
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Record, decode_record
from ...proto.record_run import Longs, PropertyRanges, parse_run, starts_of
from ...proto.run import Run
from ...proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..messages.appender import Appends
from ..messages.lookup import at_once
from ..offsets import Offsets
from .records import COPIED, HalfCopies, op_parts, op_run, resolved_offsets

logger = logging.getLogger(__name__)


#: Producer group and transaction id.
Key: TypeAlias = tuple[str, str]

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_INT_MAX: Final = (1 << 31) - 1


class OpenHalf:
    """One unresolved half message."""

    __slots__ = (
        "also",
        "due_ms",
        "group",
        "immunity_ms",
        "log_offset",
        "moved",
        "queue",
        "queue_offset",
        "size",
        "stored_ms",
        "times",
        "topic",
        "transaction_id",
    )

    def __init__(
        self,
        group: str,
        transaction_id: str,
        target: tuple[str, int],
        place: tuple[int, int, int],
        stored_ms: int,
    ) -> None:
        """TARGET: where the message goes when it is committed. PLACE: queue offset, log offset, size."""
        self.group = group
        self.transaction_id = transaction_id
        self.topic, self.queue = target
        self.queue_offset, self.log_offset, self.size = place
        self.stored_ms = stored_ms
        #: How often it was checked.
        self.times = 0
        #: Its own time until the first check (CHECK_IMMUNITY_TIME_IN_SECONDS); −1: none.
        self.immunity_ms = -1
        #: Was it put back by a Java broker during that time (TRAN_PREPARED_QUEUE_OFFSET)? −1, or where it lay first.
        self.moved = -1
        #: When it is checked next.
        self.due_ms = 0
        #: Older half messages of the same transaction, by queue offset.
        self.also: list[int] = []

    @property
    def key(self) -> Key:
        return self.group, self.transaction_id


def halves_in(slices: Slices) -> Iterator[OpenHalf]:
    """Yield the half messages in SLICES of the half queue; those that cannot be resolved are skipped with a warning."""
    columns = parse_run(slices.records, starts_of(slices.sizes))
    texts = _Texts(slices.records, PropertyRanges(slices.records, columns))
    groups, ids = texts.of(names.PRODUCER_GROUP), texts.of(names.UNIQ_KEY)
    topics, queues = texts.of(names.REAL_TOPIC), texts.of(names.REAL_QUEUE_ID)
    times, own = texts.of(names.TRANSACTION_CHECK_TIMES), texts.of(names.CHECK_IMMUNITY_SECONDS)
    moved = texts.of(names.TRANSACTION_PREPARED_QUEUE_OFFSET)
    log_offsets, stored = columns.log_offset.tolist(), columns.store_ms.tolist()
    born = columns.born_ms.tolist()
    offsets, sizes = slices.queue_offsets.tolist(), slices.sizes.tolist()
    # Where a power cut took messages, their entries in the queue show the next one there is: it comes in its own place.
    in_place = columns.well_formed & (columns.queue_offset == slices.queue_offsets)
    for row in in_place.nonzero()[0].tolist():
        queue = _number(queues[row])
        if not (groups[row] and ids[row] and topics[row]) or not 0 <= queue <= _INT_MAX:
            logger.warning(
                "a half message that cannot be resolved was skipped",
                extra={"queue_offset": offsets[row], "log_offset": log_offsets[row]},
            )
            continue
        half = OpenHalf(
            sys.intern(groups[row]),
            ids[row],
            (sys.intern(topics[row]), queue),
            (offsets[row], log_offsets[row], sizes[row]),
            stored[row],
        )
        half.times = max(0, _number(times[row]))
        seconds = _number(own[row])
        half.immunity_ms = seconds * 1000 if seconds >= 0 else -1
        half.moved = _number(moved[row])
        if (
            half.moved >= 0
        ):  # Put back by a Java broker: it was stored first when it was born, or a bit later.
            half.stored_ms = min(stored[row], born[row])
        yield half


class _Texts:
    """Values of properties, as text; empty where a record has none."""

    def __init__(self, records: bytes, ranges: PropertyRanges) -> None:
        self._records = records
        self._ranges = ranges

    def of(self, name: str) -> list[str]:
        starts: Longs
        starts, sizes = self._ranges.find(name)
        records = self._records
        return [
            str(records[start : start + size], "utf-8", "replace") if size > 0 else ""
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]


def _number(text: str) -> int:
    """Return the number that TEXT is; −1 for anything else."""
    return int(text) if _NUMBER.fullmatch(text) else -1


class OpenHalves:
    """Open half messages. Queue offsets are added in rising order. The event loop owns it."""

    def __init__(self) -> None:
        self._by_key: dict[Key, OpenHalf] = {}
        self._offsets: set[int] = set()
        #: Every offset that is open, and some that were, in rising order.
        self._in_order: deque[int] = deque()

    def __len__(self) -> int:
        """Return the number of half messages, those of one transaction counted one by one."""
        return len(self._offsets)

    @property
    def transactions(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[OpenHalf]:
        return iter(list(self._by_key.values()))

    def get(self, group: str, transaction_id: str) -> OpenHalf | None:
        return self._by_key.get((group, transaction_id))

    def holds(self, half: OpenHalf) -> bool:
        """Is HALF open still, and the newest of its transaction?"""
        return self._by_key.get(half.key) is half

    def add(self, half: OpenHalf) -> None:
        """Take in HALF, the newest of its transaction."""
        assert not self._in_order or half.queue_offset > self._in_order[-1], "added in rising order"
        older = self._by_key.get(half.key)
        if older is not None:
            half.also = older.also
            half.also.append(older.queue_offset)
            half.times = max(half.times, older.times)
        self._by_key[half.key] = half
        self._offsets.add(half.queue_offset)
        self._in_order.append(half.queue_offset)

    def remove(self, half: OpenHalf) -> None:
        """Forget HALF, and the older ones of its transaction: it is resolved."""
        del self._by_key[half.key]
        self._offsets.discard(half.queue_offset)
        self.remove_older(half)

    def remove_older(self, half: OpenHalf) -> None:
        """Forget the older half messages of HALF's transaction: they are marked as resolved."""
        self._offsets.difference_update(half.also)
        half.also = []

    def lowest(self, end: int) -> int:
        """Return the lowest queue offset that is open; END if none is."""
        in_order, offsets = self._in_order, self._offsets
        while in_order and in_order[0] not in offsets:
            in_order.popleft()
        # Entries resolved after the lowest one stay listed until then: not for ever.
        if len(in_order) > 2 * len(offsets) + 1000:
            self._in_order = in_order = deque(sorted(offsets))
        return in_order[0] if in_order else end

    def check(self) -> None:
        """Assert that the parts agree; for tests."""
        listed = {half.queue_offset for half in self} | {at for half in self for at in half.also}
        assert listed == self._offsets
        assert self._offsets <= set(self._in_order)
        assert list(self._in_order) == sorted(self._in_order)


RECENT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction for TOPIC ended, and where its message is if it was committed (else offsets are −1)."""

    committed: bool
    topic: str
    queue: int = 0
    queue_offset: int = -1
    log_offset: int = -1
    store_ms: int = 0
    #: No producer resolved it: it was checked too often, or was open too long.
    given_up: bool = False

    @classmethod
    def committed_as(cls, copy: Record) -> Outcome:
        """Return the result of the transaction whose message is COPY."""
        at = copy.queue_id, copy.queue_offset, copy.log_offset, copy.store_timestamp_ms
        return cls(True, copy.topic, *at)

    @property
    def name(self) -> str:
        if self.given_up:
            return "given up"
        return "committed" if self.committed else "rolled back"

    def reply(self, *, repeated: bool) -> pb.EndTransactionReply:
        """Return the reply to a request with this result."""
        return pb.EndTransactionReply(
            topic=self.topic,
            queue=self.queue,
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            store_timestamp_ms=self.store_ms,
            repeated=repeated,
        )


class Outcomes:
    """Results of transactions, over STORE. The event loop owns it.

    The latest `RECENT_MAX` are kept in memory. Older ones are found in the store's index (100 µs), as long as it has
    them: a committed copy, a half message that was given up, or only a half message, which was then rolled back.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._recent: OrderedDict[Key, Outcome] = OrderedDict()

    def remember(self, key: Key, outcome: Outcome) -> None:
        self._recent[key] = outcome
        self._recent.move_to_end(key)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def find(self, group: str, transaction_id: str) -> Generator[None, None, Outcome | None]:
        """Find, in steps, how a transaction of GROUP that is not open ended; None: there was none."""
        recent = self._recent.get((group, transaction_id))
        if recent is not None:
            return recent
        for half in self._records(HALF_TOPIC, transaction_id):
            if half is None:
                yield
            elif _is_of(half, group):
                topic = half.properties.get(REAL_TOPIC, "")
                outcome = yield from self.durable(group, transaction_id, topic)
                return outcome or Outcome(False, topic)
        return None

    def durable(
        self, group: str, transaction_id: str, topic: str
    ) -> Generator[None, None, Outcome | None]:
        """Find, in steps, the result that the log has of a transaction for TOPIC: committed, or given up."""
        for copy in self._records(topic, transaction_id):
            if copy is None:
                yield
            elif copy.sys_flag & SYS_TRANSACTION == SYS_COMMIT and _is_of(copy, group):
                return Outcome.committed_as(copy)
        for copy in self._records(CHECK_MAX_TIME_TOPIC, transaction_id):
            if copy is None:
                yield
            elif _is_of(copy, group):
                return Outcome(False, topic, given_up=True)
        return None

    def is_known(self, transaction_id: str) -> Generator[None, None, bool]:
        """Find out, in steps, whether any group has, or had, a half message of this id."""
        for half in self._records(HALF_TOPIC, transaction_id):
            if half is not None:
                return True
            yield
        return False

    def is_half_of(self, log_offset: int, transaction_id: str) -> bool:
        """Return whether there is a half message of this id at LOG_OFFSET. True if the log no longer reaches there."""
        if 0 <= log_offset < self._store.min_log_offset:
            return True
        data = self._store.read_at(log_offset)
        record = None if data is None else _decoded(data)
        return (
            record is not None
            and record.topic == HALF_TOPIC
            and record.properties.get(UNIQ_KEY) == transaction_id
        )

    def _records(self, topic: str, transaction_id: str) -> Iterator[Record | None]:
        """Yield the records of TOPIC with this id, the newest first; None: a turn's worth was looked at."""
        for data in self._store.looked_up(topic, transaction_id):
            record = None if data is None else _decoded(data)
            if data is None:
                yield None
            elif (
                record is not None
                and record.topic == topic
                and record.properties.get(UNIQ_KEY) == transaction_id
            ):
                yield record


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except InvalidRecord:
        return None  # Damaged: it is no evidence.


def _is_of(record: Record, group: str) -> bool:
    return record.properties.get(PRODUCER_GROUP) == group


_REMOVE_TAG = "d"


#: Offsets of the half queue that are marked as resolved, with the log offset of the op message that says so.
_Marks: TypeAlias = dict[int, int]


def _is_marked(half: OpenHalf, marks: _Marks) -> bool:
    """Return whether MARKS has HALF. An older op message is about a lost half message that had the same offset."""
    return marks.get(half.queue_offset, -1) > half.log_offset


class HalfQueue:
    """The half messages of STORE. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        appends: Appends,
        offsets: Offsets,
        outcomes: Outcomes,
        clock: Clock,
        opened: Callable[[OpenHalf], None],
    ) -> None:
        """The queue calls OPENED with each half message that becomes open."""
        self.store = store
        self.appends = appends
        self._outcomes = outcomes
        self._clock = clock
        self._progress = Progress(store, offsets, appends)
        self._next = 0
        #: Half messages that are resolved but not marked yet.
        self._owed: list[int] = []
        self.open = OpenHalves()
        self._opened = opened

    def start(self) -> None:
        """Find what is open, and follow the queue from here on."""
        begin, op_offset = self._progress.beginnings()
        self._progress.begin(begin, op_offset)
        resolved, copied = self._read_ops(op_offset)
        copies: dict[Key, Outcome] | None = None
        lost: set[int] = set()
        if not self.store.ended_cleanly:
            copies, lost = self._copies(begin, resolved, copied)
        for offset, op_log_offset in copied.items():
            if offset not in lost:
                resolved[offset] = max(op_log_offset, resolved.get(offset, -1))
        self._next = begin
        for slices in slices_from(self.store, HALF_TOPIC, 0, begin):
            for half in halves_in(slices):
                self._found(half, resolved)
            self._next = slices.next_offset
        self._settle_durable(copies)
        if lost:
            self._store_again([half for half in self.open if half.queue_offset in lost])
        if self._owed:
            self.mark([])
        self.appends.listen(HALF_TOPIC, 0, self.read_new)
        for half in self.open:
            self._open(half)
        self.reached()
        logger.info("transactions found open=%d", self.open.transactions)

    def _read_ops(self, offset: int) -> tuple[_Marks, _Marks]:
        """Return what the op messages from OFFSET on tell of: as such, and with the promise of a copy."""
        resolved: _Marks = {}
        copied: _Marks = {}
        for slices in slices_from(self.store, OP_HALF_TOPIC, 0, offset):
            starts = starts_of(slices.sizes).tolist()
            for at, number in zip(starts, slices.queue_offsets.tolist(), strict=True):
                op = decode_record(slices.records, at)
                halves = resolved_offsets(op.body) if op.properties.get(TAGS) == _REMOVE_TAG else []
                marks = copied if COPIED in op.properties else resolved
                marks.update(dict.fromkeys(halves, op.log_offset))
                self._progress.wrote_op(number, halves)
        return resolved, copied

    def _copies(
        self, begin: int, resolved: _Marks, copied: _Marks
    ) -> tuple[dict[Key, Outcome], set[int]]:
        """Return the results in the log of half messages from BEGIN on that are not RESOLVED for sure.

        Also return those of COPIED that have no copy.
        """
        newest: dict[Key, OpenHalf] = {}
        for slices in slices_from(self.store, HALF_TOPIC, 0, begin):
            for half in halves_in(slices):
                if _is_marked(half, resolved):
                    newest.pop(half.key, None)
                else:
                    newest[half.key] = half
        found = find_copies(self.store, newest.values())
        lost = {
            half.queue_offset
            for key, half in newest.items()
            if key not in found and _is_marked(half, copied)
        }
        return found, lost

    def _store_again(self, halves: Sequence[OpenHalf]) -> None:
        """Store HALVES again, whose copies were lost: the marks that are there do not tell of the new ones."""
        logger.warning("half messages without their promised copy are open count=%d", len(halves))
        records = [self.store.read_at(half.log_offset, half.size) for half in halves]
        there = [record for record in records if record is not None]
        if not there:
            return
        copies = HalfCopies(there)
        again = Run.of(HALF_TOPIC, 0, [copies.again(row) for row in range(len(there))])
        self.appends.append_one(again)
        self.read_new()

    def _found(self, half: OpenHalf, resolved: _Marks) -> None:
        """Take HALF in, unless it is RESOLVED; then an older one of its transaction, which was not marked, is too."""
        if not _is_marked(half, resolved) and half.moved not in resolved:
            self.open.add(half)
            return
        older = self.open.get(half.group, half.transaction_id)
        if older is not None:
            self._forget(older)

    def _settle_durable(self, copies: dict[Key, Outcome] | None) -> None:
        """Resolve the half messages whose result is in the log: in COPIES, or found by the index."""
        for half in self.open:
            if copies is None:
                found = self._outcomes.durable(half.group, half.transaction_id, half.topic)
                outcome = at_once(found)
            else:
                outcome = copies.get(half.key)
            if outcome is not None:
                self._outcomes.remember(half.key, outcome)
                self._forget(half)

    def _forget(self, half: OpenHalf) -> None:
        self._owed += [half.queue_offset, *half.also]
        self.open.remove(half)

    @property
    def unread(self) -> int:
        """How many half messages are stored and not confirmed."""
        queue = self.store.queues.get(HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset - self._next

    def read_new(self) -> None:
        """Take in what was appended to the half queue."""
        try:
            for slices in slices_from(self.store, HALF_TOPIC, 0, self._next):
                self._next = slices.next_offset
                for half in halves_in(slices):
                    self.open.add(half)
                    self._open(half)
        except PocketMQError as error:  # The next append tries again.
            logger.error("half messages cannot be read reason=%s", error.message)

    def _open(self, half: OpenHalf) -> None:
        # From here on it is a time for waits, independent of later changes of the clock.
        half.stored_ms = past_instant(self._clock, half.stored_ms)
        self._opened(half)

    # --- results

    def settle(self, halves: Sequence[OpenHalf]) -> None:
        """Note that HALVES are resolved and that the log has the copy; the next `mark` marks them."""
        for half in halves:
            self._forget(half)

    def settle_older(self, half: OpenHalf) -> None:
        """Note that HALF replaces the older half messages of its transaction; the next `mark` marks them."""
        self._owed += half.also
        self.open.remove_older(half)

    def mark(self, offsets: Sequence[int]) -> int | PocketMQError:
        """Mark the half messages at OFFSETS, and what was settled, as resolved; return the end of the log that says so.

        Or the error: then nothing is said of OFFSETS, and what was settled is marked the next time.
        """
        copied, others = op_parts(self._owed), op_parts(offsets)
        runs = []
        for parts, has_copy in ((copied, True), (others, False)):
            if parts:
                runs.append(op_run(parts, self._clock.unix_ms(), self.store.host, copied=has_copy))
        outcomes = self.appends.append(runs) if runs else []
        end_offset: int | PocketMQError = 0
        for parts, outcome in zip(
            [parts for parts in (copied, others) if parts], outcomes, strict=True
        ):
            if isinstance(outcome, PocketMQError):
                logger.error("op messages not written reason=%s", outcome.message)
                end_offset = outcome
                continue
            for number, part in enumerate(parts, outcome.first_queue_offset):
                self._progress.wrote_op(number, part)
            if parts is copied:
                self._owed = []
            end_offset = outcome.end_offset
        self.reached()
        return end_offset

    def reached(self) -> None:
        """Note how far the queue is done."""
        self._progress.reached(self.open.lowest(self._next))

    def close(self) -> None:
        """Mark what is owed, and commit how far the queues are done."""
        if self._owed:
            self.mark([])
        self.reached()
        self._progress.close()


# ---------------------------------------------------------------- copies of half messages

READ_MESSAGES = 1_000
READ_BYTES = 4 * 1024 * 1024


def slices_from(
    store: MessageStore, topic: str, queue: int, offset: int, *, check_crcs: bool = True
) -> Iterator[Slices]:
    """Yield what QUEUE of TOPIC holds from OFFSET on; CHECK_CRCS as in `read_queue`."""
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
    """Return the results of HALVES that the log has: committed, or given up."""
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
    """Yield the messages of a queue after LOG_OFFSET in the log that were committed or given up."""
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


# ---------------------------------------------------------------- progress

GROUP: Final = "CID_RMQ_SYS_TRANS"
_OPS_MAX: Final = 20_000


class Progress:
    """Progress over STORE, kept in OFFSETS. The event loop owns it."""

    def __init__(self, store: MessageStore, offsets: Offsets, appends: Appends) -> None:
        self._store = store
        self._appends = appends
        self._offsets = offsets
        #: Op messages that are needed: queue offset, and the highest half message that it names.
        self._ops: deque[tuple[int, int]] = deque()
        self._op_end = 0
        self._half = 0
        #: What is to be committed once the log is flushed up to the first number.
        self._waiting: tuple[int, int, int] | None = None
        self._dirty = False
        store.events.flushed.append(self._flushed)

    def beginnings(self) -> tuple[int, int]:
        """Return the offsets in the half and the op queue from which the present state is found."""
        return self._beginning(HALF_TOPIC), self._beginning(OP_HALF_TOPIC)

    def _beginning(self, topic: str) -> int:
        low, high = self._store.queue_bounds(topic, 0)
        committed = self._offsets.committed(topic, GROUP, 0)
        return low if committed is None else min(max(committed, low), high)

    def begin(self, half: int, op: int) -> None:
        """Begin with everything below HALF and OP done, as `beginnings` says."""
        self._half, self._op_end = half, op

    def wrote_op(self, op_offset: int, halves: list[int]) -> None:
        """Note the op message at OP_OFFSET of its queue, which names HALVES."""
        self._op_end = op_offset + 1
        self._ops.append((op_offset, max(halves, default=-1)))
        if len(self._ops) > _OPS_MAX:
            self._coarsen()

    def _coarsen(self) -> None:
        ops = list(self._ops)
        odd = ops[len(ops) & ~1 :]
        pairs = zip(ops[::2], ops[1::2], strict=False)
        self._ops = deque((first, max(high, other)) for (first, high), (_, other) in pairs)
        self._ops.extend(odd)

    def reached(self, lowest_open: int) -> None:
        """Note that everything below LOWEST_OPEN of the half queue is done, and commit that when it is safe."""
        self._half = lowest_open
        while self._ops and self._ops[0][1] < lowest_open:
            self._ops.popleft()
        self._dirty = True
        if self._waiting is None:
            self._wait()

    def _wait(self) -> None:
        self._dirty = False
        op = self._ops[0][0] if self._ops else self._op_end
        self._waiting = (self._store.max_log_offset, self._half, op)
        self._flushed(self._store.flushed_offset)

    def _flushed(self, offset: int) -> None:
        if self._waiting is None or min(offset, self._appends.flushed_offset) < self._waiting[0]:
            return
        _, half, op = self._waiting
        self._waiting = None
        self._commit(HALF_TOPIC, half)
        self._commit(OP_HALF_TOPIC, op)
        if self._dirty:
            self._wait()

    def _commit(self, topic: str, offset: int) -> None:
        # Where nothing was ever done, nothing is said.
        if self._beginning(topic) != offset:
            self._offsets.commit(topic, GROUP, 0, offset)

    def close(self) -> None:
        """Commit exactly what is done. The log is flushed to disk first."""
        if self._waiting is not None:
            self._store.flush()
            self._flushed(self._store.flushed_offset)
