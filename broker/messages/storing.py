"""What a run has to be before it may be stored: well formed, and such that this broker can deliver it as asked.

A run whose records do not have the shape that this broker writes is encoded again: store hosts take 4 bytes (it fills
in an IPv4 address), and records are V1 unless their topic has more than 127 bytes. Then it is divided by the ways its
messages take: at once, by a delay (delay/roads.py), or as half messages of transactions.

All pure; large runs cost nothing per message in Python but the map over the CRCs, as long as all messages are prompt.

Appending what the broker itself moves: delayed messages whose time has come, retries, dead letters, commits.

The one door to the store's log, for sends as well. Whoever waits for messages of a queue hears of every append, whoever
made it. Safe is what an answer may say has happened: with asynchronous flushing as soon as it is appended, with
synchronous flushing once it is on the device.

A broker of a replica set has a mastership. Then nobody hears of messages before they are confirmed, for what is not
could still be taken back, and safe is what is confirmed as well. Once it is fenced nothing is appended any more, and
what waits has failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from ...proto import properties as names
from ...proto.errors import InvalidArgument, InvalidRecord, PocketMQError
from ...proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_PREPARED,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    decode_record,
    encode_record,
)
from ...proto.record_run import Longs, PropertyRanges, RunColumns
from ...proto.rpc import Call
from ...proto.run import Run, check_run
from ...proto.topics import TOPIC_LENGTH_MAX
from ...store.flush import tell
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..delay.roads import DelayRules, Part, Past, divide, taken
from ..metrics.traffic import TrafficCounts
from ..replication.mastership import Mastership

T = TypeVar("T")
Flags = NDArray[np.bool_]
#: Makes half messages of a run of transactional ones.
Prepare = Callable[[Run], Run]

#: Properties of what is not simply stored in its queue.
_SPECIAL: Final = (*names.ASKING_NAMES, names.TRANSACTION_PREPARED, names.TIMER_DELETE_KEY)
#: Types of messages, what makes a message one, and how it is sent; the later ones win.
MESSAGE_TYPES: Final = ("NORMAL", "LITE", "PRIORITY", "FIFO", "DELAY", "TRANSACTION")
_ASKED_BY: Final[tuple[tuple[str, ...], ...]] = (
    (),
    (names.LITE_TOPIC,),
    (names.PRIORITY,),
    (names.SHARDING_KEY,),
    names.ASKING_NAMES,
    (),
)
_MADE_BY: Final = (
    "",
    "by an official client with lite_topic",
    "with priority=…",
    "with sharding_key=…",
    "with delay=…, deliver_at=… or delay_level=…",
    "in a transaction",
)
#: What makes a message that is simply stored none of the type NORMAL.
_TYPING: Final = (names.LITE_TOPIC, names.PRIORITY, names.SHARDING_KEY)
#: One of these bytes is in every record with such a property, or that of a type.
_HINTS: Final = (
    b"DELAY",
    b"TIMER_DEL",
    b"TRAN_MSG",
    *(name.encode() for name in _TYPING),
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run that may be stored.

    as_sent: was it not encoded again?  plain: all of it is simply stored in its queue;
    halves: which are half messages, None: none is;  normal: is all of it of the type NORMAL?
    """

    run: Run
    as_sent: bool
    plain: bool
    halves: Flags | None
    normal: bool


def admit(records: bytes, sizes: Sequence[int], topic: str, queue: int) -> Admitted:
    """Return the run of RECORDS as it may be stored.

    Raises InvalidRecord, MessageTooLarge or InvalidArgument, which name record, field and value.
    """
    run = check_run(records, sizes, topic, queue)
    if run.is_usual:
        return _judged(run, as_sent=True, checked=True)
    _check_batches(run.columns)
    as_sent = _fits(run.columns)
    if not as_sent:
        run = _encoded_again(run)
    return _judged(run, as_sent=as_sent, checked=False)


def admit_own(run: Run, *, plain: bool, normal: bool) -> Admitted:
    """Return RUN, which the broker itself encoded from what was sent, as it may be stored.

    PLAIN: none of its messages is delayed or a half message. NORMAL: nor is any of another type. Raises InvalidArgument
    for what cannot be delivered as asked.
    """
    if plain:
        return Admitted(run, True, True, None, normal)
    return _judged(run, as_sent=True, checked=True)


def _judged(run: Run, *, as_sent: bool, checked: bool) -> Admitted:
    """Return RUN, well formed, with what says which ways its messages take.

    CHECKED: none of it says that it is part of a transaction.
    """
    may_be_special = run.may_have(_HINTS)
    plain = not (may_be_special and any(run.properties.has(name) for name in _SPECIAL))
    normal = plain and not (may_be_special and any(run.properties.has(name) for name in _TYPING))
    halves = None if plain else _halves(run)
    if not checked:
        _check_transactions(run.columns, halves)
    if not plain:
        _check_recalls(run.properties)
        if halves is not None:
            _check_delays(run.properties, halves)
    return Admitted(run, as_sent, plain, halves, normal)


def ways(
    admitted: Admitted,
    rules: DelayRules,
    now_ms: int,
    prepare: Prepare,
    *,
    past: Past = "refuse",
) -> list[Part]:
    """Return the parts in which ADMITTED is stored: what is prompt, delayed, and the half messages.

    PAST is what is done with an instant that has passed. Raises what `divide` and PREPARE raise.
    """
    run, halves = admitted.run, admitted.halves
    if admitted.plain:
        return [Part(run, np.arange(len(run)), None)]
    if halves is None:
        return divide(run, rules, now_ms, past=past)
    if halves.all():
        return [Part(prepare(run), np.arange(len(run)), None)]
    rows, others = halves.nonzero()[0], (~halves).nonzero()[0]
    with_halves = [Part(_numbered(lambda: prepare(taken(run, rows)), rows), rows, None)]
    parts = _numbered(lambda: divide(taken(run, others), rules, now_ms, past=past), others)
    return [replace(part, rows=others[part.rows]) for part in parts] + with_halves


def _numbered(work: Callable[[], T], rows: Longs) -> T:
    """Return what WORK does with some records of a run, ROWS; errors count by the whole run."""
    try:
        return work()
    except PocketMQError as error:
        index = error.details.get("index")
        if index is not None:
            number = str(rows[int(index)])
            error.message = error.message.replace(f"record {index} ", f"record {number} ", 1)
            error.details["index"] = number
        raise


# --- what their topic takes


def check_type(admitted: Admitted, type_name: str) -> None:
    """Raise InvalidArgument unless the messages that were ADMITTED are such as a topic of the type TYPE_NAME takes.

    What a message is goes by what it has, as for official clients (service_v2/messages.py). Topics are NORMAL
    unless somebody says otherwise: they take all from our own clients, as from Apache's classic ones.
    """
    if type_name not in MESSAGE_TYPES[1:]:
        return
    run, wanted = admitted.run, MESSAGE_TYPES.index(type_name)
    kinds = types_of(admitted)
    wrong = np.flatnonzero(kinds != wanted)
    if len(wrong):
        index = int(wrong[0])
        found, wanted_name = MESSAGE_TYPES[kinds[index]], MESSAGE_TYPES[wanted]
        raise InvalidArgument(
            f"topic {run.topic!r} takes {wanted_name} messages (message.type), and record {index} is {found}: send it"
            f" {_MADE_BY[wanted]}, or to a topic of its type, NORMAL or MIXED"
            " (broker.topic_message_type_check)",
            field="message_type",
            limit=wanted_name,
            value=found,
            index=index,
        )


def types_of(admitted: Admitted) -> NDArray[np.int8]:
    """Return what each of the messages that were ADMITTED is, as its place among MESSAGE_TYPES."""
    run = admitted.run
    ranges = run.properties
    kinds = np.zeros(len(run), np.int8)
    for kind, asking in enumerate(_ASKED_BY):
        for name in asking:
            if ranges.has(name):
                kinds[ranges.find(name)[1] > 0] = kind
    if admitted.halves is not None:
        kinds[admitted.halves] = MESSAGE_TYPES.index("TRANSACTION")
    return kinds


def kinds_of(admitted: Admitted) -> dict[str, Flags]:
    """Return which of the messages that were ADMITTED are of each type that is among them."""
    types = types_of(admitted)
    return {MESSAGE_TYPES[kind]: types == kind for kind in np.unique(types).tolist()}


# --- what the records are


def _check_batches(columns: RunColumns) -> None:
    """Refuse inner batches."""
    special = columns.sys_flag & (SYS_INNER_BATCH | SYS_NEEDS_UNWRAP)
    if special.any():
        index = int((special != 0).argmax())
        value = int(columns.sys_flag[index])
        raise InvalidRecord(
            f"record {index} of the run: sysFlag {value:#x} is an inner batch's; send its messages one by one",
            field="sysFlag",
            index=index,
            value=value,
        )


def _halves(run: Run) -> Flags | None:
    """Tell which messages are half messages: TRAN_MSG is "true", in whatever case. None: none is."""
    starts, sizes = run.properties.find(names.TRANSACTION_PREPARED)
    records = memoryview(run.records)
    halves: Flags = np.zeros(len(starts), np.bool_)
    for row in (sizes == len("true")).nonzero()[0].tolist():
        at = int(starts[row])
        halves[row] = bytes(records[at : at + 4]).lower() == b"true"
    return halves if halves.any() else None


def _check_transactions(columns: RunColumns, halves: Flags | None) -> None:
    """Refuse transaction types; a half message may say prepared."""
    types = columns.sys_flag & SYS_TRANSACTION
    if not types.any():
        return
    bad = types != 0
    if halves is not None:
        bad &= ~(halves & (types == SYS_PREPARED))
    if bad.any():
        index = int(bad.argmax())
        value = int(columns.sys_flag[index])
        raise InvalidRecord(
            f"record {index} of the run: sysFlag {value:#x} says that it is part of a transaction: send a half message"
            " with the property TRAN_MSG=true, and its outcome with EndTransaction",
            field="sysFlag",
            index=index,
            value=value,
        )


def _check_recalls(ranges: PropertyRanges) -> None:
    """Refuse the markers that recall messages: they must not name what is not there, or somebody else's."""
    index = _first(ranges.find(names.TIMER_DELETE_KEY)[1] > 0)
    if index is not None:
        raise InvalidArgument(
            f"record {index} of the run has the property {names.TIMER_DELETE_KEY}: use Recall to have a message back",
            field=names.TIMER_DELETE_KEY,
            index=index,
        )


def _check_delays(ranges: PropertyRanges, halves: Flags) -> None:
    """Refuse half messages with a delay: there is no instant that it could count from."""
    for name in names.ASKING_NAMES:
        index = _first(halves & (ranges.find(name)[1] > 0))
        if index is not None:
            raise InvalidArgument(
                f"record {index} of the run has the properties {names.TRANSACTION_PREPARED} and {name}: a message of a"
                " transaction is delivered when it is committed, and cannot be delayed as well",
                field=name,
                index=index,
            )


def _first(flags: Flags) -> int | None:
    return int(flags.argmax()) if flags.any() else None


# --- the shape of the records


def _fits(columns: RunColumns) -> bool:
    """Do all records leave room for an IPv4 store host, and have the version that their topic's length asks for?"""
    if (columns.sys_flag & SYS_STORE_V6).any():
        return False
    # All are of one topic. A Java broker reads the length in a V1 record as a signed byte.
    fitting = MAGIC_V2 if int(columns.topic_size[0]) > TOPIC_LENGTH_MAX else MAGIC_V1
    return bool((columns.magic == fitting).all())


def _encoded_again(run: Run) -> Run:
    """Encode RUN again, with room for an IPv4 store host and in the fitting version."""
    encoded = []
    for row, start in enumerate(run.columns.starts.tolist()):
        record = replace(decode_record(run.records, start), store_host=NO_HOST)
        encoded.append(encode_record(record, property_string=run.property_string(row)))
    return Run.of(run.topic, run.queue, encoded)


# ---------------------------------------------------------------- appending what the broker itself moves


#: Told the (topic, queue) of messages that were stored.
Listener = Callable[[], None]
Key = tuple[str, int]
#: Told None once something is so, or why it never will be.
Done = Callable[[PocketMQError | None], None]


class Appends:
    """Appends to STORE. Not thread-safe: the event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        notify: Callable[[Key], object],
        mastership: Mastership | None = None,
        traffic: TrafficCounts | None = None,
    ) -> None:
        """NOTIFY wakes the fetches that wait for a queue. MASTERSHIP: None without replicas."""
        #: Where those who append count what came in.
        self.traffic = TrafficCounts() if traffic is None else traffic
        self._store = store
        self._notify = notify
        self.mastership = mastership
        self._listeners: dict[Key, list[Listener]] = {}
        #: Told the topic of messages that were stored, whichever it is.
        self.on_arrival: list[Callable[[str], None]] = []
        #: Set for good when another replica is, or may be, the master.
        self.fenced: PocketMQError | None = None
        #: Queues with messages that are not confirmed: the log ended there when they were appended.
        self._unconfirmed: deque[tuple[int, list[Key]]] = deque()
        #: Who waits until all before the first number is confirmed, in the order in which they came.
        self._waits: list[tuple[int, int, Done]] = []
        #: Who waits for the device first, by number.
        self._syncs: dict[int, Done] = {}
        self._numbers = count()
        store.events.caught_up.append(self.notify)
        if mastership is not None:
            mastership.on_confirm(self._confirmed)

    def listen(self, topic: str, queue: int, listener: Listener) -> None:
        """Call LISTENER after every append to QUEUE of TOPIC."""
        self._listeners.setdefault((topic, queue), []).append(listener)

    # --- appending

    def append(self, runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        """Append RUNS in their order, each whole or not at all; return what became of each."""
        outcomes = self.put(runs)
        self.notify((run.topic, run.queue) for run in runs)
        return outcomes

    def append_one(self, run: Run) -> Appended:
        """Append RUN, whole or not at all; raises what the store raises."""
        (outcome,) = self.append([run])
        if isinstance(outcome, PocketMQError):
            raise outcome
        return outcome

    def put(self, runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        """Append as `append` does; in this turn the caller has to `notify`."""
        if self.mastership is None:
            return self._store.append_many(runs)
        if self.fenced is not None:
            return [self.fenced] * len(runs)
        outcomes = self._store.append_many(runs)
        self.mastership.appended(self._store.max_log_offset)
        return outcomes

    def put_together(self, runs: Sequence[Run]) -> list[Appended]:
        """Append all of RUNS or nothing; in this turn the caller has to `notify`. Raises what the store raises."""
        if self.mastership is None:
            return self._store.append_together(runs)
        if self.fenced is not None:
            raise self.fenced
        try:
            return self._store.append_together(runs)
        finally:
            self.mastership.appended(self._store.max_log_offset)

    # --- hearing of it

    def notify(self, keys: Iterable[Key]) -> None:
        """Wake everybody who waits for one of the queues KEYS; what one of them raises keeps no other from hearing.

        If what was appended to them is not confirmed yet, they hear of it when it is.
        """
        if self.lags:
            self._unconfirmed.append((self._store.max_log_offset, list(keys)))
        else:
            self._tell(keys)

    def _tell(self, keys: Iterable[Key]) -> None:
        for key in dict.fromkeys(keys):
            tell(self._notify, key)
            for listener in self._listeners.get(key, ()):
                tell(listener)
            for heard in self.on_arrival:
                tell(heard, key[0])

    # --- confirmed, and safe

    @property
    def lags(self) -> bool:
        """Is there anything in the log that is not confirmed?"""
        return not self._is_confirmed(self._store.max_log_offset)

    def _confirmed(self, offset: int) -> None:
        """All before OFFSET is confirmed: those hear of it who wait for messages, and then who waits for answers."""
        if self.fenced is not None:
            return
        keys: list[Key] = []
        while self._unconfirmed and self._unconfirmed[0][0] <= offset:
            keys += self._unconfirmed.popleft()[1]
        self._tell(keys)
        while self._waits and self._waits[0][0] <= offset:
            tell(heappop(self._waits)[2], None)

    def when_confirmed(self, end_offset: int, done: Done) -> None:
        """Call DONE once everything before END_OFFSET is confirmed, at once without replicas; or with the fence."""
        if self._is_confirmed(end_offset) or self.fenced is not None:
            done(self.fenced)
        else:
            heappush(self._waits, (end_offset, next(self._numbers), done))

    def _is_confirmed(self, end_offset: int) -> bool:
        return self.mastership is None or self._store.confirmed_offset >= end_offset

    def when_all_confirmed(
        self, begin: Callable[[], object], fail: Callable[[PocketMQError], object]
    ) -> None:
        """Call BEGIN once everything that is stored now is confirmed: it looks for something that was stored.

        What BEGIN raises is raised if that is at once, and told to FAIL later.
        """

        def confirmed(error: PocketMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                begin()
            except PocketMQError as refused:
                fail(refused)

        if self.lags:
            self.when_confirmed(self._store.max_log_offset, confirmed)
        else:
            begin()

    def fence(self, error: PocketMQError) -> None:
        """Append nothing any more, and fail with ERROR who waits."""
        self.fenced = error
        self._unconfirmed.clear()
        waits, self._waits = self._waits, []
        syncs, self._syncs = self._syncs, {}
        for done in (*syncs.values(), *(wait[2] for wait in waits)):
            tell(done, error)

    @property
    def flushed_offset(self) -> int:
        """Everything in the log before it is on the device, and confirmed: it is never taken back."""
        flushed = self._store.flushed_offset
        return flushed if self._is_confirmed(flushed) else self._store.confirmed_offset

    def request_sync(self, end_offset: int, waiter: Done) -> None:
        """Call WAITER once everything before END_OFFSET is on the device, and confirmed, or with the error."""
        if self.mastership is None:
            self._store.request_sync(end_offset, waiter)
            return
        number = next(self._numbers)
        self._syncs[number] = waiter  # The fence does not wait for the device.

        def synced(error: PocketMQError | None) -> None:
            done = self._syncs.pop(number, None)
            if done is None:
                return
            if error is None:
                self.when_confirmed(end_offset, done)
            else:
                done(error)

        self._store.request_sync(end_offset, synced)

    def when_safe(self, end_offset: int, done: Done) -> None:
        """Call DONE once everything before END_OFFSET is as safe as the store's setting promises, or with the error."""
        if self._store.config.flush == "sync":
            self.request_sync(end_offset, done)
        else:
            self.when_confirmed(end_offset, done)

    def reply_when_safe(self, call: Call, reply: Message, end_offset: int) -> None:
        """Answer CALL with REPLY once everything before END_OFFSET is safe, or with the error."""
        self.when_safe(
            end_offset, lambda error: call.reply(reply) if error is None else call.fail(error)
        )

    async def safe(self, end_offset: int) -> None:
        """Return once everything before END_OFFSET is safe, or raise the error."""
        await ended(lambda done: self.when_safe(end_offset, done))


async def synced(store: MessageStore, end_offset: int) -> None:
    """Return once everything of STORE before END_OFFSET is on the device, or raise the error."""
    await ended(lambda done: store.request_sync(end_offset, done))


async def ended(begin: Callable[[Callable[[PocketMQError | None], None]], None]) -> None:
    """Call BEGIN with what to call at the end; return then, or raise the error it is called with."""
    ended: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()

    def end(error: PocketMQError | None) -> None:
        if not ended.done():  # Who waited may have been cancelled.
            ended.set_result(error)

    begin(end)
    if (error := await ended) is not None:
        raise error
