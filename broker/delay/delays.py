"""Everything that waits for its time in one store, by level or to an instant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...proto.clock import Clock
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ..config import BrokerConfig
from ..messages.appends import Appends
from ..timing.timers import Timers
from ..timing.virtual_time import is_virtual
from .deliveries import DelayedDeliveries
from .levels import LevelDeliveries
from .progress import DeliveredNote, LevelProgress
from .timed import TimedDeliveries


class Delays:
    """The delayed messages of STORE. TIMERS go by CLOCK, the messages' time. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        timers: Timers,
        clock: Clock,
        appends: Appends,
        state_file: Callable[[str], StateFile],
    ) -> None:
        # A clock that is moved by hand waits for every instant: nothing has to go together.
        pause_ms = 0 if is_virtual(clock) else config.delay_pause_ms
        deliveries = DelayedDeliveries(appends)
        self._note = DeliveredNote(store, has_replicas=appends.mastership is not None)
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
        """How many messages wait for their time."""
        return self._levels.waiting + self._timed.waiting

    def next_of_levels(self) -> Mapping[int, int]:
        """Return which message of the queue of each level comes next."""
        return self._progress.offsets

    def oldest_log_offset(self) -> int | None:
        """Return the lowest log offset of what waits, besides what the timer log names; None if nothing does."""
        found = (self._levels.oldest_log_offset(), self._timed.oldest_log_offset())
        return min((offset for offset in found if offset is not None), default=None)

    def start(self) -> None:
        """Begin to deliver, with what is overdue; on a running loop."""
        self._levels.start()
        self._timed.start()

    def save(self) -> None:
        """Write down how far the levels have come, as far as that is safe; call it every now and then."""
        self._progress.save()

    async def stop(self) -> None:
        """Deliver nothing any more, and write down exactly what was delivered."""
        await self._levels.stop()
        self._timed.close()

    def forget(self) -> None:
        """Take the note of what was delivered away: everything stands in the store's own files."""
        self._note.remove()
