"""Fetches with a filter: the matching messages from an offset on.

It scans some messages per turn and keeps the matching ones, up to HELD_BYTES_MAX, so that it examines none twice. It
answers once it has enough. At the end of the queue it waits for messages. At its deadline it answers with what it has
and how far it scanned, so the group can commit past filtered messages. If all that it scanned was filtered out, the
deadline is SKIPPED_WAIT_MS away: a consumer that ends soon can commit as well, and a stream of messages that do not
match costs a few fetches per second.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...store.message_store import MessageStore
from ...store.slices import Slices
from ..queue_stats import ScanResult
from ..timing.purgatory import Purgatory, WatchedOperation
from .fetch_reply import Done, FetchLimits, Refusal, failed_reply, never_written_reply
from .filters import FilterChoice, Filters, Mask, share_of_turn

#: A fetch that has found so many bytes answers, whatever it asked for: it holds them in memory.
HELD_BYTES_MAX: Final = 64 * 1024
#: A fetch that has filtered out everything that it scanned waits no longer than this.
SKIPPED_WAIT_MS: Final = 200


class FilteredFetch:
    """One fetch: an operation of the purgatory."""

    def __init__(
        self,
        request: pb.FetchRequest,
        limits: FetchLimits,
        choice: FilterChoice,
        store: MessageStore,
        filters: Filters,
        done: Done,
        refusal: Refusal = lambda group: None,
    ) -> None:
        self._request = request
        self._limits = limits
        self._choice = choice
        self._store = store
        self._filters = filters
        self._done = done
        self._refusal = refusal
        self._next = request.offset
        self._found: list[bytes] = []
        self._found_bytes = self._found_count = self._stepped = self._lost = 0
        self._looked = False
        #: Whether a record was found that does not fit into the reply.
        self._is_full = False
        #: Whether a later turn continues the scan; then no other event does.
        self._is_scheduled = False
        self._watch: tuple[Purgatory, WatchedOperation] | None = None
        self._is_short = False

    def watched(self, purgatory: Purgatory, waiting: WatchedOperation) -> None:
        """Called when PURGATORY watches this fetch as WAITING."""
        self._watch = purgatory, waiting
        self._shorten_wait()

    def _shorten_wait(self) -> None:
        """Shorten the wait if everything that was scanned was filtered out."""
        has_skipped = self._next > self._request.offset and not self._found
        if has_skipped and self._watch is not None and not self._is_short:
            self._is_short = True
            purgatory, waiting = self._watch
            purgatory.shorten(waiting, SKIPPED_WAIT_MS)

    def try_complete(self) -> bool:
        if self._is_scheduled or self._next == self._end():
            return False
        if not self._filters.has_turn:
            self._is_scheduled = True
            self._filters.go_on(self._scan_on)
            return False
        before = self._next
        error = self._scan()
        if error is not None or self._is_enough():
            self._answer(error)
            return True
        if before < self._next != self._end():
            self._is_scheduled = True
            self._filters.go_on(self._scan_on)
        return False

    def on_deadline(self) -> None:
        self._answer(None if self._looked or not self._filters.has_turn else self._scan())

    def scan_once(self) -> None:
        """Scan the next messages, in this turn or a later one, and answer."""
        if self._filters.has_turn:
            self.on_deadline()
        else:
            self._filters.go_on(self._scan_later)

    def _scan_later(self) -> bool:
        self.on_deadline()
        return True

    def _scan_on(self) -> bool:
        self._is_scheduled = False
        return self._watch is not None and self._watch[0].try_again(self._watch[1])

    def _end(self) -> int:
        return self._store.queue_bounds(self._request.topic, self._request.queue)[1]

    def _is_enough(self) -> bool:
        request, limits = self._request, self._limits
        enough = min(max(request.min_bytes, 1), limits.size_bytes, HELD_BYTES_MAX)
        return self._is_full or self._found_bytes >= enough or self._found_count >= limits.messages

    def _scan(self) -> pb.FetchReply | None:
        """Scan the next messages; return an error reply if that is not possible."""
        self._looked = True
        request, limits = self._request, self._limits
        if (refusal := self._refusal(request.group)) is not None:
            return failed_reply(request, self._store, refusal)
        room_bytes = limits.size_bytes - self._found_bytes
        try:
            seen = self._store.read_queue(
                request.topic,
                request.queue,
                self._next,
                min(limits.messages - self._found_count, self._choice.records_max),
                min(room_bytes, self._choice.bytes_max),
                self._choice.candidates,
                check_crcs=request.check_crcs,
            )
        except errors.QueueNotFound:
            return never_written_reply(request)
        except errors.PocketMQError as error:
            return None if self._found else failed_reply(request, self._store, error)
        if self._found and len(seen.records) > room_bytes:
            self._is_full = True
        else:
            self._take(seen)
        return None

    def _take(self, seen: Slices) -> None:
        self._filters.spend(share_of_turn(self._choice, seen))
        wanted = self._choice.wanted(seen)
        count = int(wanted.sum())
        stepped = seen.turned_down + len(seen) - count
        request = self._request
        if request.group:
            look = ScanResult(
                self._next, seen.next_offset, seen.queue_offsets[wanted], stepped, seen.lost
            )
            self._filters.consume_stats.look(
                (request.group, request.topic, request.queue),
                look,
                queue_end=seen.max_offset,
                filtering=self._choice.filtering,
            )
        if count:
            found = _kept(seen, wanted)
            self._found.append(found)
            self._found_bytes += len(found)
            self._found_count += count
        self._stepped += stepped
        self._lost += seen.lost
        self._next = seen.next_offset
        self._shorten_wait()

    def _answer(self, error: pb.FetchReply | None) -> None:
        if error is not None:
            self._done(error)
            return
        request = self._request
        if request.group and self._found:
            self._filters.traffic.delivered(
                request.group, request.topic, self._found_count, self._found_bytes
            )
        low, high = self._store.queue_bounds(request.topic, request.queue)
        self._done(
            pb.FetchReply(
                fetch_id=request.fetch_id,
                records=b"".join(self._found),
                next_offset=self._next,
                min_offset=low,
                max_offset=high,
                filtered_count=self._stepped,
                lost_count=self._lost,
            )
        )


def _kept(seen: Slices, wanted: Mask) -> bytes:
    """Return the records of SEEN for which WANTED is true, joined."""
    if wanted.all():
        return seen.records
    ends = np.cumsum(seen.sizes)
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    bounds = np.concatenate((np.zeros(1, np.int64), ends))[edges].tolist()
    pieces = map(slice, bounds[::2], bounds[1::2])
    return b"".join(map(memoryview(seen.records).__getitem__, pieces))
