"""The road of a send: topic and queue, the run's checks, the store, and the answer at the durability asked for.

MEMORY is answered as soon as the run is appended: it survives a kill of the process, not a power cut. DISK is
answered when the device has it; all sends of one turn of the loop, and all that come while a sync is under
way, share the next sync. Which one was reached stands in the answer.

A run is stored whole or not at all. What the broker cannot deliver as asked (delayed and transactional messages)
is refused, never stored as if it were an ordinary message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

from ..proto.errors import (
    FlushTimeout,
    InvalidArgument,
    InvalidRecord,
    MessageTooLarge,
    NotServed,
    Overloaded,
    PocketMQError,
    StoreError,
)
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
)
from ..proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    SYS_INNER_BATCH,
    SYS_NEEDS_UNWRAP,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    decode_record,
    encode_record,
)
from ..proto.record_run import PropertyRanges, RunColumns, check_run, parse_run, starts_of
from ..proto.topics import TOPIC_LENGTH_MAX
from ..store.message_store import MessageStore
from ..store.run import Appended, Run
from .config import BrokerConfig
from .timers import Timers
from .topics import Topics

logger = logging.getLogger(__name__)

#: Properties that ask for what this broker does not do yet.
_NOT_PROMPT: Final = {
    DELAY: "delayed messages",
    TIMER_DELAY_MS: "delayed messages",
    TIMER_DELAY_SEC: "delayed messages",
    TIMER_DELIVER_MS: "delayed messages",
    TRANSACTION_PREPARED: "transactions",
}
#: One of these bytes is in every record with such a property.
_HINTS: Final = (b"DELAY", b"TIMER_DELIVER", b"TRAN_MSG")
#: Told of the answer to one run, exactly once.
Done = Callable[[pb.ProduceReply], None]


class Sends:
    """Takes runs. NOTIFY is told the (topic, queue) of every run that was stored."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        store: MessageStore,
        timers: Timers,
        notify: Callable[[Hashable], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._timers = timers
        self._notify = notify
        self._default = pb.DISK if store.config.flush == "sync" else pb.MEMORY
        self._flushing: list[_Flushing] = []
        self._waiting = 0
        #: Set while the broker stops: every further send is refused with it.
        self.refusal: PocketMQError | None = None

    @property
    def waiting(self) -> int:
        """Return how many sends wait for the device."""
        return self._waiting

    def send(self, run: pb.ProduceRun, done: Done) -> None:
        """Store RUN and tell DONE, now or when the device has it; a refusal is told as an answer too."""
        try:
            appended, columns = self._store_run(run)
        except PocketMQError as error:
            done(_refusal(run, error))
            return
        self._notify((run.topic, run.queue))
        reply = _reply(run, appended, columns)
        if self._durability(run) == pb.DISK:
            self._answer_from_disk(reply, appended.end_offset, done)
        else:
            reply.durability = pb.MEMORY
            done(reply)

    def _store_run(self, run: pb.ProduceRun) -> tuple[Appended, RunColumns]:
        if self.refusal is not None:
            raise self.refusal
        self._check_room(run)
        self._check_size(run)
        self._topics.check_sendable(run.topic)
        records, columns = run.records, check_run(run.records, run.sizes, run.topic, run.queue)
        _check_kinds(columns)
        _check_prompt(records, columns)
        if not _fits(columns):
            records, columns = _encoded_again(records, columns)
        # Only a good run may make a topic.
        topic = self._topics.for_writing(run.topic, run.queue)
        stored = Run(topic=topic.name, queue=run.queue, records=records, columns=columns)
        return self._store.append(stored), columns

    def _durability(self, run: pb.ProduceRun) -> int:
        """Return MEMORY or DISK, whichever RUN asks for, or the store's own."""
        asked = int(run.durability)
        if asked not in (pb.DURABILITY_UNSPECIFIED, pb.MEMORY, pb.DISK):
            raise InvalidArgument(
                f"durability is {asked}: use MEMORY (1), DISK (2), or none (0)",
                field="durability",
                limit=pb.DISK,
                value=asked,
            )
        return asked or self._default

    def _check_room(self, run: pb.ProduceRun) -> None:
        limit = self._config.flush_waiting_max
        if self._durability(run) == pb.DISK and self._waiting >= limit:
            raise Overloaded(
                f"{self._waiting} sends wait for the device, the limit is {limit}: send less at a time",
                field="durability",
                limit=limit,
                value=self._waiting,
            )

    def _check_size(self, run: pb.ProduceRun) -> None:
        limit = self._config.run_bytes_max
        if len(run.records) > limit:
            raise MessageTooLarge(
                f"records: a run of {len(run.records)} bytes, the limit is {limit}: send it in parts",
                field="records",
                limit=limit,
                value=len(run.records),
            )

    # --- the device

    def _answer_from_disk(self, reply: pb.ProduceReply, end_offset: int, done: Done) -> None:
        self._waiting += 1
        flushing = _Flushing(reply, end_offset, done)
        if not self._flushing:
            # The runs that this turn of the loop still brings join the same sync.
            asyncio.get_running_loop().call_soon(self._request_sync)
        self._flushing.append(flushing)

    def _request_sync(self) -> None:
        flushing, self._flushing = self._flushing, []

        def synced(error: StoreError | None) -> None:
            self._timers.cancel(timer)
            self._settle(flushing, error)

        timeout_ms = self._store.config.flush_timeout_ms
        late = FlushTimeout(
            f"stored in memory, but not on the device within {timeout_ms} ms"
            " (store.flush_timeout_ms): it may get there yet",
            limit=timeout_ms,
        )
        timer = self._timers.after(timeout_ms, lambda: self._settle(flushing, late))
        self._store.request_sync(max(one.end_offset for one in flushing), synced)

    def _settle(self, flushing: list[_Flushing], error: PocketMQError | None) -> None:
        """Answer all of FLUSHING that were not answered yet."""
        for one in flushing:
            if one.done is None:
                continue
            done, one.done = one.done, None
            self._waiting -= 1
            one.reply.durability = pb.MEMORY if error else pb.DISK
            if error is not None:
                one.reply.error.CopyFrom(to_wire(error))
            done(one.reply)


class _Flushing:
    """An answer that waits for the device; DONE is None once it was given."""

    __slots__ = ("done", "end_offset", "reply")

    def __init__(self, reply: pb.ProduceReply, end_offset: int, done: Done) -> None:
        self.reply = reply
        self.end_offset = end_offset
        self.done: Done | None = done


def _check_kinds(columns: RunColumns) -> None:
    """Refuse transactional records and inner batches: they need a road of their own."""
    special = columns.sys_flag & (SYS_TRANSACTION | SYS_INNER_BATCH | SYS_NEEDS_UNWRAP)
    if not special.any():
        return
    index = int(special.argmax())
    value = int(columns.sys_flag[index])
    if value & SYS_TRANSACTION:
        raise NotServed(
            f"record {index} of the run: sysFlag {value:#x} is a transaction's; transactions are not served yet",
            field="sysFlag",
            index=index,
            value=value,
        )
    raise InvalidRecord(
        f"record {index} of the run: sysFlag {value:#x} is an inner batch's; send its messages one by one",
        field="sysFlag",
        index=index,
        value=value,
    )


def _check_prompt(records: bytes, columns: RunColumns) -> None:
    """Refuse records with properties that ask for a delay or a transaction."""
    # Most runs hold none of these bytes anywhere, which is quicker to see than what their properties are.
    if not any(hint in records for hint in _HINTS):
        return
    ranges = PropertyRanges(records, columns)
    for name, what in _NOT_PROMPT.items():
        _, sizes = ranges.find(name)
        if (sizes > 0).any():
            index = int((sizes > 0).argmax())
            raise NotServed(
                f"record {index} of the run has the property {name}: {what} are not served yet",
                field=name,
                index=index,
            )


def _fits(columns: RunColumns) -> bool:
    """Do all records leave room for an IPv4 store host, and have the version that their topic's length asks for?"""
    if (columns.sys_flag & SYS_STORE_V6).any():
        return False
    # All are of one topic. A Java broker reads the length in a V1 record as a signed byte.
    fitting = MAGIC_V2 if int(columns.topic_size[0]) > TOPIC_LENGTH_MAX else MAGIC_V1
    return bool((columns.magic == fitting).all())


def _encoded_again(records: bytes, columns: RunColumns) -> tuple[bytes, RunColumns]:
    """Encode the run again, with an IPv4 store host, which is what this broker fills in, and the fitting version."""
    encoded = []
    for index, start in enumerate(columns.starts.tolist()):
        record = replace(decode_record(records, start), store_host=NO_HOST)
        at, size = int(columns.properties_start[index]), int(columns.properties_size[index])
        encoded.append(encode_record(record, property_string=records[at : at + size]))
    data = b"".join(encoded)
    return data, parse_run(data, starts_of([len(part) for part in encoded]))


def _reply(run: pb.ProduceRun, appended: Appended, columns: RunColumns) -> pb.ProduceReply:
    offsets = appended.log_offsets
    reply = pb.ProduceReply(
        run_id=run.run_id,
        first_queue_offset=appended.first_queue_offset,
        first_log_offset=int(offsets[0]),
        store_timestamp_ms=appended.store_timestamp_ms,
    )
    starts = columns.starts
    end_to_end = int(offsets[-1] - offsets[0]) == int(starts[-1] - starts[0])
    if not end_to_end or int(columns.sizes.sum()) != len(run.records):  # a split, or encoded again
        reply.log_offsets.extend(offsets.tolist())
    return reply


def _refusal(run: pb.ProduceRun, error: PocketMQError) -> pb.ProduceReply:
    logger.debug("send refused topic=%s queue=%d reason=%s", run.topic, run.queue, error.message)
    return pb.ProduceReply(run_id=run.run_id, error=to_wire(error))
