"""All delayed messages of one store: by delay level, and by due time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...proto.clock import Clock
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ...store.tables import JournalTable
from ..config import BrokerConfig
from ..messages.appender import Appender
from ..timing.timers import Timers
from ..timing.virtual_time import is_virtual
from .deliveries import DelayedDeliveries
from .levels import LevelDeliveries
from .progress import DeliveredNote, LevelProgress
from .timed import TimedDeliveries


class Delays:
    """The delayed messages of STORE. TIMERS use CLOCK, the time of messages. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        appends: Appender,
        state_file: Callable[[str], StateFile],
        delivered: JournalTable[str, str, Any],
    ) -> None:
        # A virtual clock stops at every due time, so batches are not needed.
        pause_ms = 0 if is_virtual(clock) else config.delay_batch_ms
        deliveries = DelayedDeliveries(appends)
        self._note = DeliveredNote(store, delivered, has_replicas=appends.mastership is not None)
        self._note.find()
        self._progress = LevelProgress(
            state_file("delayOffset.json"), store, appends, clock.unix_ms, self._note
        )
        self._levels = LevelDeliveries(
            store, timers, clock, deliveries, appends, self._progress, pause_ms=pause_ms
        )
        self._timed = TimedDeliveries(
            store,
            timers,
            clock,
            deliveries,
            appends,
            slot_messages_max=config.delay_slot_messages_max,
            pause_ms=pause_ms,
            note=self._note,
        )

    @property
    def waiting(self) -> int:
        """How many messages are scheduled."""
        return self._levels.waiting + self._timed.waiting

    def next_of_levels(self) -> Mapping[int, int]:
        """Return the offset of the next message in the queue of each level."""
        return self._progress.offsets

    def oldest_log_offset(self) -> int | None:
        """Return the lowest log offset of a scheduled message that is not in the timer log; None if there is none."""
        found = (self._levels.oldest_log_offset(), self._timed.oldest_log_offset())
        return min((offset for offset in found if offset is not None), default=None)

    def start(self) -> None:
        """Start to deliver, overdue messages first; needs a running loop."""
        self._levels.start()
        self._timed.start()

    def save(self) -> None:
        """Save the progress of the levels, as far as it is safe. Call this periodically."""
        self._progress.save()

    async def stop(self) -> None:
        """Stop delivering, and save exactly what was delivered."""
        await self._levels.stop()
        self._timed.close()

    def forget(self) -> None:
        """Clear the note of deliveries: the files of the store have the complete progress now."""
        self._note.remove()
