"""A whole broker of Apache RocketMQ 5.5.0 up to the moment in which it would begin to serve."""

from __future__ import annotations

from collections.abc import Mapping

from ...proto.topics import SCHEDULE_TOPIC
from ..disk import Disk
from .config import ConfigLoader, JavaConfig
from .settings import ApacheSettings
from .store import ApacheStore, queue_type_of
from .timers import JavaTimers


class ApacheBroker:
    """Config, message store and timers after `BrokerController.initialize`. Raises `Refused` where that fails."""

    def __init__(self, disk: Disk, root: str, settings: ApacheSettings, now_ms: int) -> None:
        """Open the store in ROOT on DISK; NOW_MS is the broker's time of day."""
        loader = ConfigLoader(disk, root, settings, now_ms)
        self.config: JavaConfig = loader.metadata()
        self.store = ApacheStore(disk, root, settings, self._queue_type, now_ms)
        self.timers: JavaTimers | None = None
        if settings.timer_wheel:
            self.timers = JavaTimers(self.store)
            self.timers.open()
        self.store.open()
        if self.timers is not None:
            self.timers.start(now_ms, metrics_loaded=loader.timers(self.config))
        loader.delays(self.config)
        self._correct_delays()
        loader.request_modes(self.config)

    def _queue_type(self, topic: str) -> str:
        attributes: Mapping[str, str] = self.config.topic_attributes(topic)
        return queue_type_of(attributes)

    def _correct_delays(self) -> None:
        """Bring each level's progress into the bounds of its queue, which exists from now on."""
        for level in self.store.settings.delay_table():
            queue = self.store.queue(SCHEDULE_TOPIC, level - 1)
            offset = self.config.delay_offsets.get(level)
            if offset is not None:
                within = max(offset, queue.min_offset)
                self.config.delay_offsets[level] = min(within, queue.max_offset)
