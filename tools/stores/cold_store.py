"""A store as a broker would have it after its recovery, opened without writing a byte.

`ColdStore.open` reads the config files, then recovers the store on an overlay: as Apache RocketMQ 5.5.0's broker does
(the default), or as ours does. The store may be live, stopped, copied or damaged, of either broker, on any disk that a
location names. Committed offsets are read before the queues, so that a live group is never seen ahead of its queue.

    location, = locate(["./store"])
    store = ColdStore.open(location, now_ms=clock.unix_ms())
    for queue in store.queues():
        print(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)

Queue offsets, log offsets and bytes are those of the store format; times are Unix milliseconds. One thread uses it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...proto.errors import StoreRefused
from ...store.apache.broker import ApacheBroker
from ...store.apache.config import JavaConfig
from ...store.apache.files import Refused
from ...store.apache.settings import ApacheSettings
from ...store.apache.store import ApacheStore
from ...store.apache.timers import JavaTimers
from ...store.overlay_disk import OverlayDisk
from ...store.recovery import RecoveryReport
from ...store.state_tables import GroupConfig, TopicConfig
from .locations import StoreLocation
from .our_reading import open_ours
from .recoveries import RecoveryName
from .sizes import settings_of

#: What reading or mapping a folder fails with.
_NO_FILE: Final = (errno.EISDIR, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """One consume queue: messages [min_offset, max_offset) can be asked for.

    kind: "SimpleCQ" (an entry a message) or "BatchCQ" (an entry a batch);  has_files: is it on disk? A queue without
    files is one that its topic's configuration has, and nothing was ever written to.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    kind: str = "SimpleCQ"
    has_files: bool = True


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far GROUP has come in one queue: the queue offset that it reads next."""

    topic: str
    queue_id: int
    group: str
    offset: int


class ColdStore:
    """One opened store.

    location, disk (the overlay), root, settings: where and how.  recovery: whose.  config: all tables of the config
    folder.  reading: log, queues and index as they are after recovery, with Apache's readers.  timers: None without a
    timer store.  clean: did its last owner stop cleanly? (While a broker runs, no.)  report: what our recovery found;
    None for Apache's.
    """

    def __init__(
        self,
        location: StoreLocation,
        reading: ApacheStore,
        config: JavaConfig,
        timers: JavaTimers | None,
        *,
        clean: bool,
        report: RecoveryReport | None = None,
    ) -> None:
        """Put the parts together; `open` is the way in."""
        self.location = location
        self.reading = reading
        self.config = config
        self.timers = timers
        self.report = report
        self.clean = clean

    @classmethod
    def open(
        cls,
        location: StoreLocation,
        *,
        now_ms: int,
        given: Mapping[str, str] | None = None,
        recovery: RecoveryName = "apache",
        index: bool = True,
    ) -> ColdStore:
        """Open the store at LOCATION as a broker would at NOW_MS.

        GIVEN are settings by Apache's names (mappedFileSizeCommitLog=65536); sizes that are not given are taken from
        the files. Without INDEX the key index is not completed: that takes nearly all of the time when a broker runs or
        was killed. Raises StoreRefused where the broker would not start, ConfigError for a bad setting.
        """
        base = location.open_disk()
        settings = settings_of(base, location.root, given or {})
        if not index:
            settings = replace(settings, index_file_write=False)
        disk = OverlayDisk(base, on_this_machine=location.is_local)
        try:
            if recovery == "apache":
                return _as_apache(location, disk, settings, now_ms)
            return _as_ours(location, disk, settings, now_ms)
        except Refused as refusal:
            raise _refused(location, recovery, refusal.text) from None
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            why = f"{error.filename or location.root} is, or holds, a folder where a file should be"
            raise _refused(location, recovery, why) from None

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def broker_name(self) -> str:
        return self.location.broker_name

    @property
    def disk(self) -> OverlayDisk:
        disk = self.reading.disk
        assert isinstance(disk, OverlayDisk)
        return disk

    @property
    def root(self) -> str:
        return self.reading.root

    @property
    def settings(self) -> ApacheSettings:
        return self.reading.settings

    @property
    def log_begin(self) -> int:
        """The log's first offset; −1 without log files."""
        return self.reading.log_begin

    @property
    def log_end(self) -> int:
        return self.reading.log_end

    # --- queues --------------------------------------------------------------------------------------------------

    def queues(self) -> list[QueueBounds]:
        """Return every queue that has files or was opened by recovery, by topic and queue."""
        return [self._bounds(topic, queue_id) for topic, queue_id in sorted(self.reading.queues)]

    def queue(self, topic: str, queue_id: int) -> QueueBounds | None:
        """Return one queue; None where neither files nor the topic's configuration know it.

        A queue that only the configuration knows is [0, 0), as a broker makes it when it is first asked for.
        """
        if (topic, queue_id) in self.reading.queues:
            return self._bounds(topic, queue_id)
        if 0 <= queue_id < self.configured_queues(topic):
            return QueueBounds(topic, queue_id, 0, 0, self.reading.queue_type(topic), False)
        return None

    def _bounds(self, topic: str, queue_id: int) -> QueueBounds:
        queue = self.reading.queues[topic, queue_id]
        return QueueBounds(
            topic, queue_id, queue.min_offset, queue.max_offset, queue.kind, bool(queue.files.files)
        )

    def configured_queues(self, topic: str) -> int:
        """Return how many queues the configuration of TOPIC gives it, to read or to write; 0 for an unknown topic."""
        config = self.topics.get(topic)
        return 0 if config is None else max(config.read_queues, config.write_queues)

    # --- tables --------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, TopicConfig]:
        """Every topic of the configuration, the broker's own among them."""
        return self.config.topics

    @property
    def groups(self) -> dict[str, GroupConfig]:
        """Every group of the configuration, the built-in ones among them."""
        return self.config.groups

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Yield every committed offset of consumerOffset.json (of its `.bak` where that is cut short), in its order.

        The group of broadcast progress is "group@broadcast". Keys without "@" are nobody's and left out.
        """
        for key, queues in self.config.consumer_offsets.items():
            topic, at, group = key.partition("@")
            if not at:
                continue
            for queue_id, offset in queues.items():
                yield CommittedOffset(topic, queue_id, group, offset)


def _as_apache(
    location: StoreLocation, disk: OverlayDisk, settings: ApacheSettings, now_ms: int
) -> ColdStore:
    broker = ApacheBroker(disk, location.root, settings, now_ms)
    store = broker.store
    return ColdStore(location, store, broker.config, broker.timers, clean=store.clean)


def _as_ours(
    location: StoreLocation, disk: OverlayDisk, settings: ApacheSettings, now_ms: int
) -> ColdStore:
    ours = open_ours(disk, location.root, settings, now_ms)
    report = ours.store.recovery
    return ColdStore(
        location, ours.reading, ours.config, ours.timers, clean=report.clean, report=report
    )


def _refused(location: StoreLocation, recovery: RecoveryName, why: str) -> StoreRefused:
    whose = "Apache's broker" if recovery == "apache" else "a broker"
    return StoreRefused(
        f"{whose} would not start on {location.url}: {why}; `pocketmq doctor` says more",
        path=location.url,
        recovery=recovery,
    )
