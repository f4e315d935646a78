"""Fetches: raw records of a queue from an offset on, at once or when there is enough of them.

A fetch waits in purgatory under its (topic, queue) until `min_bytes` are there or its time is over; each append to the
queue lets it try again. Long waits of one length end in bunches, up to 1/64 later than asked for. The records are
slices of the log, joined once; nothing is decoded here, and bodies are compared with their CRCs only where the request
says so: our own clients do that themselves, and ask again when they find a wrong one. A fetch with a filter is another
kind, see filters.py.
"""

from __future__ import annotations

from collections.abc import Callable

from ..proto.errors import InvalidArgument, PocketMQError, QueueNotFound
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.record import FIXED_SIZE_V4
from ..store.message_store import MessageStore
from ..store.slices import Slices
from .accounts.account import QueueLook
from .accounts.accounts import Accounts
from .config import BrokerConfig
from .fetch_replies import Done, FetchLimits, failed, never_written
from .filters import FilteredFetch, Filters, choice_of
from .offsets import Offsets
from .topics import Topics
from .waiting import Purgatory, Waiting, end_of_wait


class Fetches:
    """Answers fetches from STORE."""

    def __init__(  # noqa: PLR0913  (it stands between these parts)
        self,
        config: BrokerConfig,
        topics: Topics,
        offsets: Offsets,
        store: MessageStore,
        purgatory: Purgatory,
        now_ms: Callable[[], int],
        filters: Filters,
        renew_lease: Callable[[str, str, int, int], None] | None = None,
    ) -> None:
        """RENEW_LEASE: of group, topic and queue; raises LeaseLost where they are not held under the token."""
        self._config = config
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._filters = filters
        self._renew_lease = renew_lease
        #: Hears of each fetch; returns what is told its answer.
        self.on_fetch: Callable[[pb.FetchRequest, Done], Done] = lambda request, done: done
        #: How many fetches were asked for.
        self.asked = 0

    def fetch(self, request: pb.FetchRequest, done: Done) -> Waiting | None:
        """Tell DONE the answer, now or later; return the wait, which its owner may cancel, None if it is over."""
        self.asked += 1
        try:
            self._check(request)
            done = self.on_fetch(request, done)
            fetch = self._operation(request, done)
        except PocketMQError as error:
            done(pb.FetchReply(fetch_id=request.fetch_id, error=to_wire(error)))
            return None
        if request.group:
            self._offsets.pulled(request.topic, request.group, request.queue, request.offset)
        if request.min_bytes <= 0 or request.max_wait_ms <= 0:
            if isinstance(fetch, FilteredFetch):
                fetch.look_once()
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
        limits = self._limits(request)
        choice = choice_of(request.filter) if request.HasField("filter") else None
        if choice is None:
            return _Fetch(request, limits, self._store, self._filters.accounts, done)
        return FilteredFetch(request, limits, choice, self._store, self._filters, done)

    def _check(self, request: pb.FetchRequest) -> None:
        for field in ("offset", "max_messages", "max_bytes", "min_bytes", "max_wait_ms"):
            value = getattr(request, field)
            if value < 0:
                raise InvalidArgument(
                    f"{field} is {value}: must not be negative", field=field, limit=0, value=value
                )
        self._topics.for_reading(request.topic, request.queue)
        if request.lease and self._renew_lease is not None:
            self._renew_lease(request.group, request.topic, request.queue, request.lease)

    def _limits(self, request: pb.FetchRequest) -> FetchLimits:
        """Return how many messages and bytes the answer may have."""
        config = self._config
        messages = min(request.max_messages or config.fetch_messages_max, config.fetch_messages_max)
        size = min(request.max_bytes or config.fetch_bytes_default, config.fetch_bytes_max)
        return FetchLimits(messages, size)


class _Fetch:
    """One fetch: an operation of the purgatory."""

    __slots__ = (
        "_accounts",
        "_done",
        "_limits",
        "_log_offset_enough",
        "_request",
        "_seen",
        "_store",
    )

    def __init__(
        self,
        request: pb.FetchRequest,
        limits: FetchLimits,
        store: MessageStore,
        accounts: Accounts,
        done: Done,
    ) -> None:
        self._request = request
        self._limits = limits
        self._store = store
        self._accounts = accounts
        self._done = done
        self._seen: Slices | None = None
        #: While the log ends before it there cannot be enough: a try that failed is not repeated in vain.
        self._log_offset_enough = 0

    def try_complete(self) -> bool:
        request = self._request
        _, high = self._store.queue_bounds(request.topic, request.queue)
        if request.offset == high or self._store.max_log_offset < self._log_offset_enough:
            return False
        reply = self._read()
        missing_bytes = min(request.min_bytes, self._limits[1]) - len(reply.records)
        missing_messages = self._limits[0] - (reply.next_offset - request.offset)
        stuck = not reply.records and reply.next_offset > request.offset  # stepped over a hole
        is_full = reply.next_offset < reply.max_offset  # the next record does not fit in any more
        is_over = is_full or stuck or reply.error.name
        if missing_bytes > 0 and missing_messages > 0 and not is_over:
            growth = min(missing_bytes, missing_messages * FIXED_SIZE_V4)
            self._log_offset_enough = self._store.max_log_offset + growth
            return False
        self._answer(reply)
        return True

    def on_deadline(self) -> None:
        self._answer(self._read())

    def _answer(self, reply: pb.FetchReply) -> None:
        request, seen = self._request, self._seen
        if request.group and seen is not None:
            key, end = (request.group, request.topic, request.queue), seen.next_offset
            if reply.lost_count:
                look = QueueLook(request.offset, end, seen.queue_offsets, 0, seen.lost)
                self._accounts.look(key, look, queue_end=seen.max_offset)
            else:
                self._accounts.look_at_all(key, request.offset, end)
        self._done(reply)

    def _read(self) -> pb.FetchReply:
        request = self._request
        messages, size = self._limits
        try:
            found = self._seen = self._store.read_queue(
                request.topic,
                request.queue,
                request.offset,
                messages,
                size,
                check_crcs=request.check_crcs,
            )
        except QueueNotFound:
            return never_written(request)
        except PocketMQError as error:
            return failed(request, self._store, error)
        return pb.FetchReply(
            fetch_id=request.fetch_id,
            records=found.records,
            next_offset=found.next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            lost_count=found.lost,
        )
