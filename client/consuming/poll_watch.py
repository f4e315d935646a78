"""Takes a consumer out of its group whose application does not come for more, and lets others have its queues.

It looks eight times in max_poll_interval_ms, so that the application is missed an eighth later at most. While it goes
through a batch message by message, each counts as coming for more.
"""

from __future__ import annotations

import logging
from typing import Final

from ...proto.facts import Facts
from .offsets import Cursor
from .reading import Reading

logger = logging.getLogger(__name__)

_LOOKS: Final = 8


async def watch_polls(reading: Reading, cursor: Cursor) -> None:
    """Watch READING, whose application stands at CURSOR, until cancelled."""
    clock = reading.parts.session.clock
    interval_ms = reading.config.max_poll_interval_ms
    last = (0, 0)
    since_ms = clock.now_ms()
    while True:
        await clock.sleep_until(clock.now_ms() + max(1, interval_ms // _LOOKS))
        now = (reading.calls, cursor.end)
        if reading.is_waiting or now != last or reading.is_away or reading.supply is None:
            last, since_ms = now, clock.now_ms()
        elif clock.now_ms() - since_ms >= interval_ms:
            logger.warning(
                "application does not come for more messages, leaving the group until it does %s",
                Facts(group=reading.parts.group, max_poll_interval_ms=interval_ms),
            )
            reading.is_away = True
            reading.give_up_handed()
            await reading.supply.source.close()
