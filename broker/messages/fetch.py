"""Fetches: raw records of a queue from an offset on, at once or when there are enough.

A fetch waits in purgatory under its (topic, queue) until `min_bytes` are available or its time is over. Each append to
the queue lets it try again. Long waits end together, up to 1/64 later than requested.

The records are slices of the log, joined once and not decoded. Bodies are compared with their CRCs only if the request
asks for it: PocketMQ's clients check them and fetch again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...proto import errors
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import FIXED_SIZE_V4
from ...proto.topics import check_group
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..config import BrokerConfig
from ..consumer_groups import Groups
from ..events import BrokerEvents
from ..offsets import Offsets
from ..queue_stats import ScanResult
from ..timing.purgatory import Purgatory, WatchedOperation, end_of_wait
from ..topics import Topics
from .fetch_reply import Done, FetchLimits, Refusal, failed_reply, limits_of, read_once
from .filtered_fetch import FilteredFetch
from .filters import Filters, choice_of

#: Called with the reply to one fetch, exactly once.


class Fetches:
    """Answers fetches from STORE."""

    def __init__(  # noqa: PLR0913  (it connects these parts)
        self,
        config: BrokerConfig,
        topics: Topics,
        offsets: Offsets,
        store: MessageStore,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        filters: Filters,
        groups: Groups,
        renew_lease: Callable[[str, str, int, int], None] | None = None,
        events: BrokerEvents | None = None,
    ) -> None:
        """RENEW_LEASE takes group, topic, queue and token; it raises LeaseLost for a token that is not valid."""
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._filters = filters
        self._groups = groups
        self._renew_lease = renew_lease
        self._began = (events or BrokerEvents()).fetch_began
        #: Number of fetches since the start.
        self.asked = 0

    def fetch(self, request: pb.FetchRequest, done: Done) -> WatchedOperation | None:
        """Call DONE with the reply, now or later; return the wait, which the caller may cancel, None if DONE was
        called.
        """
        self.asked += 1
        try:
            self._check(request)
            if request.HasField("looked_at"):
                done(self._note(request))
                return None
            for callback in self._began:
                done = callback(request, done)
            fetch = self._operation(request, done)
        except errors.PocketMQError as error:
            done(pb.FetchReply(fetch_id=request.fetch_id, error=to_wire(error)))
            return None
        if request.group:
            self._offsets.pulled(request.topic, request.group, request.queue, request.offset)
        if request.min_bytes <= 0 or request.max_wait_ms <= 0:
            if isinstance(fetch, FilteredFetch):
                fetch.scan_once()
            else:
                fetch.on_deadline()
            return None
        wait_ms = min(request.max_wait_ms, self._config.fetch_wait_max_ms)
        key = (request.topic, request.queue)
        deadline_ms = end_of_wait(self._now_ms(), wait_ms)
        waiting = self._purgatory.complete_or_watch(fetch, key, deadline_ms)
        if waiting is not None and isinstance(fetch, FilteredFetch):
            fetch.watched(self._purgatory, waiting)
        return waiting

    def _operation(self, request: pb.FetchRequest, done: Done) -> _Fetch | FilteredFetch:
        limits = limits_of(request, self._config)
        choice = choice_of(request.filter) if request.HasField("filter") else None
        if choice is None:
            return _Fetch(request, limits, self._store, self._filters, self._refusal, done)
        return FilteredFetch(
            request, limits, choice, self._store, self._filters, done, self._refusal
        )

    def _refusal(self, group: str) -> errors.PocketMQError | None:
        """Return why GROUP gets no messages: its consumption may be switched off while a fetch waits."""
        try:
            self._groups.check_consuming(group)
        except errors.NotReadable as error:
            return error
        return None

    def _note(self, request: pb.FetchRequest) -> pb.FetchReply:
        """Record in the group what a follower answered to REQUEST; return the reply to that report."""
        told, begin = request.looked_at, request.offset
        low, high = self._store.queue_bounds(request.topic, request.queue)
        count = told.next_offset - begin
        wanted = begin - 1 + np.cumsum(np.array(told.steps, np.int64))
        if not (
            request.group
            and count > 0
            and told.next_offset <= high
            and 0 <= told.filtered_count <= count - len(wanted)
            and 0 not in told.steps
            and (not len(wanted) or wanted[-1] < told.next_offset)
        ):
            raise errors.InvalidArgument(
                f"looked_at of offset {begin} has {len(wanted)} messages and {told.filtered_count} filtered out, up to"
                f" {told.next_offset}: it needs a group, and as many rising offsets, of a queue that ends at {high}",
                field="looked_at",
                value=told.next_offset,
                limit=high,
            )
        key = (request.group, request.topic, request.queue)
        choice = choice_of(request.filter)
        self._offsets.pulled(request.topic, request.group, request.queue, begin)
        if choice is None:
            self._filters.consume_stats.look_at_all(key, begin, told.next_offset)
        else:
            look = ScanResult(begin, told.next_offset, wanted, told.filtered_count, 0)
            self._filters.consume_stats.look(key, look, queue_end=high, filtering=choice.filtering)
        return pb.FetchReply(
            fetch_id=request.fetch_id,
            next_offset=told.next_offset,
            min_offset=low,
            max_offset=high,
        )

    def _check(self, request: pb.FetchRequest) -> None:
        for field in ("offset", "max_messages", "max_bytes", "min_bytes", "max_wait_ms"):
            value = getattr(request, field)
            if value < 0:
                raise errors.InvalidArgument(
                    f"{field} is {value}: must not be negative", field=field, limit=0, value=value
                )
        self._topics.for_reading(request.topic, request.queue)
        if request.group:
            check_group(request.group)
            if not request.HasField("looked_at"):
                self._groups.check_consuming(request.group)
        if request.lease and self._renew_lease is not None:
            self._renew_lease(request.group, request.topic, request.queue, request.lease)


class _Fetch:
    """One fetch: an operation of the purgatory."""

    __slots__ = (
        "_done",
        "_filters",
        "_limits",
        "_log_offset_enough",
        "_refusal",
        "_request",
        "_seen",
        "_store",
    )

    def __init__(
        self,
        request: pb.FetchRequest,
        limits: FetchLimits,
        store: MessageStore,
        filters: Filters,
        refusal: Refusal,
        done: Done,
    ) -> None:
        self._request = request
        self._limits = limits
        self._store = store
        self._filters = filters
        self._refusal = refusal
        self._done = done
        self._seen: Slices | None = None
        #: Until the log is readable up to this offset there cannot be enough: do not read again
        #: before.
        self._log_offset_enough = 0

    def try_complete(self) -> bool:
        request = self._request
        _, high = self._store.queue_bounds(request.topic, request.queue)
        if request.offset == high or self._store.confirmed_offset < self._log_offset_enough:
            return False
        reply = self._read()
        missing_bytes = min(request.min_bytes, self._limits[1]) - len(reply.records)
        missing_messages = self._limits[0] - (reply.next_offset - request.offset)
        stuck = not reply.records and reply.next_offset > request.offset  # It skipped a gap.
        is_full = reply.next_offset < reply.max_offset  # The next record does not fit.
        is_over = is_full or stuck or reply.error.name
        if missing_bytes > 0 and missing_messages > 0 and not is_over:
            growth = min(missing_bytes, missing_messages * FIXED_SIZE_V4)
            self._log_offset_enough = self._store.confirmed_offset + growth
            return False
        self._answer(reply)
        return True

    def on_deadline(self) -> None:
        self._answer(self._read())

    def _answer(self, reply: pb.FetchReply) -> None:
        request, seen = self._request, self._seen
        if request.group and seen is not None:
            if len(seen):
                self._filters.traffic.delivered(
                    request.group, request.topic, len(seen), len(seen.records)
                )
            key, end = (request.group, request.topic, request.queue), seen.next_offset
            if reply.lost_count:
                look = ScanResult(request.offset, end, seen.queue_offsets, 0, seen.lost)
                self._filters.consume_stats.look(key, look, queue_end=seen.max_offset)
            else:
                self._filters.consume_stats.look_at_all(key, request.offset, end)
        self._done(reply)

    def _read(self) -> pb.FetchReply:
        if (refusal := self._refusal(self._request.group)) is not None:
            return failed_reply(self._request, self._store, refusal)
        reply, self._seen = read_once(self._store, self._request, self._limits)
        return reply
