"""Replicated tables of a follower, in the files in which a broker expects them. state_source.py describes the frames.

topics, groups      as in a broker: on disk (journal) at once, then in the file itself
the rest            in memory at once; in the file soon, once the log that the table depends on is on disk

A frame waits until the log is confirmed here up to its `log_offset`; topics and groups do not wait. It is acknowledged
when it survives a power cut. A kill leaves each file as before or after a frame. After a start, the follower reports
that it has nothing, and gets full tables.

A full frame removes entries that it does not have. Removed topics, groups or offsets that a former master may have
accepted are first written to `<root>/pocketmq/set-aside/FILE.N`, and never deleted.

Limit: HELD_BYTES_MAX bytes wait for the log. The event loop owns it; a thread writes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...store.flush import Flusher
from ...store.format import state_tables
from ...store.message_store import MessageStore
from ...store.offsets_file import OFFSETS_FILE
from ..broker_tables import BrokerTables
from ..callbacks import Safe
from .file_stream import DELAYS_FILE, FileTableSink, LevelsSink, OffsetsSink
from .follower_view import FollowerTables
from .frames import STATE_SIZE_MAX, check_state
from .state_deliveries import DELIVERIES_FILE, DeliveriesSink
from .state_source import epoch_of
from .state_timers import TIMERS_FILE, TimersSink
from .table_stream import TableSink, stream_file

logger = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 2 * STATE_SIZE_MAX
#: Minimum interval of writes of a file, and its share of time (one in _SHARE), unless a transfer of
#: leadership waits.
_SAVE_MS: Final = 100
_SHARE: Final = 10
#: Pages of scheduled messages that are entered per tick: a few milliseconds each.
_TIMER_PAGES: Final = 5
#: How often the complete tables of topics and groups are written, if they changed.
_TABLES_MS: Final = 1_000


class SinkPart(Protocol):
    """The follower's copy of one file."""

    is_kept: bool

    def read(self, content: bytes) -> Any:
        """Return the changes in CONTENT; raises ValueError, LookupError, TypeError or AttributeError."""

    def apply(self, said: Any, *, whole: bool, log_offset: int) -> None:
        """Apply SAID. WHOLE: remove everything else. Raises StoreError."""

    def when_safe(self, done: Safe) -> None:
        """Call DONE once everything applied is on disk, or with the error."""

    def close(self) -> None:
        """Write everything to the file now; its threads have ended. Raises StoreError."""


class StateSink:
    """The replicated tables of the follower with the log of STORE. ACKNOWLEDGE sends a frame to the master.

    UNIX_MS dates versions of tables. NOW_MS is a clock that is not set back.
    """

    def __init__(
        self,
        store: MessageStore,
        unix_ms: Callable[[], int],
        now_ms: Callable[[], int],
        acknowledge: Callable[[pb.FollowStateAck], None],
        saver: Flusher | None = None,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._acknowledge = acknowledge
        self._saver = saver or Flusher("pocketmq-save-replica")
        clock = _Clock(unix_ms, now_ms)
        self._tables = tables = BrokerTables.open(store, clock)
        with tables.closed_on_error():
            self._topics = FileTableSink(store, state_tables.TOPICS, tables.topics, unix_ms)
            self._groups = FileTableSink(store, state_tables.GROUPS, tables.groups, unix_ms)
            self._offsets = OffsetsSink(store, unix_ms)
            self._levels = LevelsSink(store, unix_ms)
            self._timers = TimersSink(store, unix_ms)
        self._kept = [self._topics, self._groups]
        self._parts: dict[str, SinkPart] = {
            **{part.file: part for part in self._kept},
            OFFSETS_FILE: self._offsets,
            DELAYS_FILE: self._levels,
            DELIVERIES_FILE: DeliveriesSink(self._tables.deliveries, clock),
            TIMERS_FILE: self._timers,
            **{stream_file(one): TableSink(one) for one in self._tables.replicated},
        }
        #: Versions: received over this link, applied, and on disk.
        self._received = dict.fromkeys(self._parts, 0)
        self._applied = dict.fromkeys(self._parts, 0)
        self._safe = dict.fromkeys(self._parts, 0)
        self._held: deque[tuple[pb.FollowState, Any]] = deque()
        self._held_bytes = 0
        #: Files that are being saved, and when each may be saved again.
        self._saving: set[str] = set()
        self._save_after_ms: dict[str, int] = {}
        self._tables_ms = 0
        self._is_open = True

    def start(self) -> None:
        """Start to write in a thread; the store has started."""
        self._saver.start()
        for kept in self._kept:
            kept.table.start(self._saver, self._store.call_owner)
        self._offsets.offsets.start(self._saver, self._store.call_owner)
        self._levels.start(self._saver, self._store.call_owner)
        self._tables.journal.start(self._store.call_owner)

    @property
    def tables(self) -> FollowerTables:
        """The applied tables."""
        return FollowerTables(
            self._topics.table.entries,
            self._tables.commit_texts,
            self._offsets.offsets,
            epoch_of(self._applied[OFFSETS_FILE]),
            self._groups.table.entries,
        )

    def begin(self) -> dict[str, int]:
        """Start a link to a master: return the versions on disk, for the hello."""
        # Leases and delay progress are from this broker's own time as a master.
        self._tables.forget_own()
        self._held.clear()
        self._held_bytes = 0
        self._received = dict(self._safe)
        return dict(self._safe)

    def take(self, frame: pb.FollowState, confirm: int) -> None:
        """Accept FRAME of the master. The log is confirmed here up to CONFIRM.

        Raises:
            InvalidArgument: The frame is invalid; nothing has changed, and the link must end.
            StoreError: The frame was not applied; it is sent again over the next link.
        """
        check_state(frame)
        part = self._parts.get(frame.file)
        if part is None:
            raise InvalidArgument(
                f"file {frame.file!r} is unknown to this follower: it has {', '.join(self._parts)}",
                field="file",
                value=frame.file,
            )
        received = self._received[frame.file]
        whole = frame.WhichOneof("content") == "whole"
        if not whole and not frame.base <= received < frame.version:
            raise InvalidArgument(
                f"diff of {frame.file!r} goes from version {frame.base} to {frame.version}, the last was {received}",
                field="base",
                value=frame.base,
                limit=received,
            )
        try:
            said = part.read(frame.whole if whole else frame.diff)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"content of {frame.file!r} cannot be read: {error}", field="content"
            ) from error
        if part.is_kept or (not self._held and frame.log_offset <= confirm):
            self._apply(part, frame, said)
        else:
            self._hold(frame, said)
        self._received[frame.file] = frame.version

    def _hold(self, frame: pb.FollowState, said: Any) -> None:
        size = frame.ByteSize()
        if self._held and self._held_bytes + size > HELD_BYTES_MAX:
            raise InvalidArgument(
                f"{self._held_bytes + size} bytes of state wait for the log, the limit is {HELD_BYTES_MAX}",
                limit=HELD_BYTES_MAX,
                value=self._held_bytes + size,
            )
        self._held.append((frame, said))
        self._held_bytes += size

    def confirmed(self, confirm: int) -> None:
        """The log is confirmed here up to CONFIRM: apply the frames that waited for it. Raises StoreError."""
        while self._held and self._held[0][0].log_offset <= confirm:
            frame, said = self._held[0]
            self._apply(self._parts[frame.file], frame, said)
            self._held.popleft()
            self._held_bytes -= frame.ByteSize()

    def _apply(self, part: SinkPart, frame: pb.FollowState, said: Any) -> None:
        whole = frame.WhichOneof("content") == "whole"
        part.apply(said, whole=whole, log_offset=frame.log_offset)
        self._applied[frame.file] = frame.version
        # What is on disk since the hello is sent again over this link, and must be acknowledged
        # over it.
        if part.is_kept or frame.version == self._safe[frame.file]:
            self._save(frame.file)

    def _save(self, name: str) -> None:
        """Flush the applied version of file NAME to disk, and acknowledge it."""
        version, began_ms = self._applied[name], self._now_ms()
        self._saving.add(name)

        def safe(error: PocketMQError | None) -> None:
            self._saving.discard(name)
            pause_ms = max(_SAVE_MS, _SHARE * (self._now_ms() - began_ms))
            self._save_after_ms[name] = began_ms + pause_ms
            if error is not None:
                logger.error("state not saved file=%s reason=%s", name, error.message)
            elif self._is_open and version >= self._safe[name]:
                self._safe[name] = version
                self._acknowledge(pb.FollowStateAck(file=name, version=version))

        self._parts[name].when_safe(safe)

    def when_kept(self, tell: Callable[[], None]) -> None:
        """Call TELL once the topics and groups received so far are on disk; never, if that fails.

        Then the log depends on nothing that a power cut could lose.
        """
        waiting = len(self._kept)

        def safe(error: PocketMQError | None) -> None:
            nonlocal waiting
            waiting -= error is None
            if not waiting:
                tell()

        for kept in self._kept:
            kept.when_safe(safe)

    def tick(self) -> None:
        """Write what is due. Call this every 100 ms."""
        now_ms = self._now_ms()
        self._timers.go_on(_TIMER_PAGES)
        self._topics.delete_queues(self._store.max_log_offset)
        self._tables.journal.tick()
        for name in self._unsaved():
            if now_ms >= self._save_after_ms.get(name, 0):
                self._save(name)
        if now_ms - self._tables_ms >= _TABLES_MS:
            self._tables_ms = now_ms
            for kept in self._kept:
                kept.table.tick()

    def _unsaved(self) -> list[str]:
        """Return the files with changes that no running save includes."""
        return [
            name
            for name, part in self._parts.items()
            if self._applied[name] != self._safe[name]
            and not part.is_kept
            and name not in self._saving
        ]

    def save(self) -> None:
        """Write all changes at once, without the minimum interval: a transfer of leadership waits for it."""
        for name in self._unsaved():
            self._save(name)
        self._timers.go_on(_TIMER_PAGES)

    def lead(self) -> None:
        """Stop following: write every file, so that a broker finds everything. Raises StoreError.

        The log is that of a master now, so all of it is valid.
        """
        self.confirmed(self._store.max_log_offset)
        self._topics.delete_queues(None)
        errors = self._end()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Write every file and close; errors are only logged. Idempotent."""
        for error in self._end():
            logger.error("state not saved reason=%s", error.message)

    def _end(self) -> list[PocketMQError]:
        if not self._is_open:
            return []
        self._is_open = False
        self._held.clear()
        errors: list[PocketMQError] = []
        try:
            # Tables that wait for the log are saved by the thread now: nothing is written later.
            if self._offsets.offsets.is_ahead_of_log or self._levels.is_ahead_of_log:
                self._store.flush()
        except PocketMQError as error:
            errors.append(error)
        self._saver.stop()
        for part in self._parts.values():
            try:
                part.close()
            except PocketMQError as error:
                errors.append(error)
        self._tables.journal.close()
        return errors


@dataclass(frozen=True, slots=True)
class _Clock:
    """The clock of the journal of tables."""

    unix_ms: Callable[[], int]
    now_ms: Callable[[], int]
