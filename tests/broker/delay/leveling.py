"""A store whose delay levels are delivered on a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pocketmq.broker.delay.deliveries import DelayedDeliveries
from pocketmq.broker.delay.levels import LevelDeliveries
from pocketmq.broker.delay.progress import LevelProgress
from pocketmq.broker.delay_rules import DelayLimits, route
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.timing.timers import Timers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.record import decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.format.state_tables import parse_delay_offsets
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...runs import make_run

START_MS = 1_700_000_000_123
HOUR_MS = 3_600_000
LEVELS_MS = StoreConfig(path="").delay_levels_ms
SMALL: dict[str, Any] = {
    "log_file_size_bytes": 1 << 17,
    "queue_file_size_bytes": 20 * 40,
    "index": False,
}


def offsets_in(store: Path) -> dict[int, int]:
    """Return how far each level is by the file of STORE."""
    return parse_delay_offsets((store / "config" / "delayOffset.json").read_text()).offsets


class Leveling:
    """Parts put together; `arrived` holds (instant, queue of the topic, body) of all that was delivered to T."""

    def __init__(
        self,
        path: Path,
        clock: VirtualClock | None = None,
        *,
        disk: Disk | None = None,
        config: StoreConfig | None = None,
        pause_ms: int = 0,
    ) -> None:
        self.clock = clock or VirtualClock(START_MS)
        self.disk = disk or OsDisk()
        config = config or StoreConfig(path=str(path), **SMALL)
        self.store = MessageStore.open(config, disk=self.disk, now_ms=self.clock.unix_ms)
        self.timers = Timers(self.clock)
        self.appends = Appender(self.store, self._note)
        self.file = StateFile(self.disk, config.path, "delayOffset.json")
        self.progress = LevelProgress(self.file, self.store, self.appends, self.clock.unix_ms)
        self.levels = LevelDeliveries(
            self.store,
            self.timers,
            self.clock,
            DelayedDeliveries(self.appends),
            self.appends,
            self.progress,
            pause_ms=pause_ms,
        )
        self.rules = DelayLimits(config.delay_levels_ms, config.timer_precision_ms, 86_400_000)
        self.arrived: list[tuple[int, int, bytes]] = []
        self._seen = {queue: self.store.queue_bounds("T", queue)[1] for queue in (0, 1)}

    def start(self) -> None:
        self.timers.start()
        self.levels.start()

    def _note(self, key: tuple[str, int]) -> None:
        topic, queue = key
        _, end = self.store.queue_bounds(topic, queue)
        while topic == "T" and self._seen[queue] < end:
            slices = self.store.read_queue(topic, queue, self._seen[queue], 1, 1 << 20)
            body = decode_record(slices.records).body
            self.arrived.append((self.clock.now_ms(), queue, body))
            self._seen[queue] += 1

    def send(self, level: int, *bodies: bytes, queue: int = 0) -> None:
        """Send messages with delay LEVEL to QUEUE of T."""
        run = make_run("T", queue, bodies, {"DELAY": str(level)})
        outcomes = self.appends.append(
            [part.run for part in route(run, self.rules, self.clock.unix_ms())]
        )
        assert not any(isinstance(outcome, PocketMQError) for outcome in outcomes), outcomes

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.arrived]

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.levels.stop()
        await self.timers.stop()
        self.store.close()

    async def kill(self) -> None:
        """Leave the files as they are; copy them before the store is closed for good."""
        await self.timers.stop()
