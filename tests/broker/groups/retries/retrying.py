"""A broker's retries without its network: a store, the tables, timers on a virtual clock, and what is due delivered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.delay.deliveries import DelayedDeliveries, TimedStamps
from pocketmq.broker.delay_rules import DelayLimits
from pocketmq.broker.groups.dead_letters import DeadLetters
from pocketmq.broker.groups.retries import Retries
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, decode_record
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.store.config import StoreConfig
from pocketmq.store.format.state_tables import GroupConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ....runs import make_run, small_config

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TIMER = "rmq_sys_wheel_timer"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
#: Before the first retry, the second, …, the sixteenth: Apache's levels 3 to 18.
CLASSIC = [
    *(10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]
RULES = DelayLimits(StoreConfig(path="").delay_levels_ms, 1_000, 3 * 86_400_000)


class Retrying:
    """All that takes part in a retry; `deliver` hangs what waits on the timers."""

    def __init__(self, path: Path, *, config: StoreConfig | None = None, **changes: object) -> None:
        self.clock = VirtualClock()
        self.store = MessageStore.open(
            config or small_config(path, **{"log_file_size_bytes": 1 << 16, **changes}),
            disk=OsDisk(),
            now_ms=self.clock.now_ms,
        )
        settings = BrokerConfig()
        folder = self.store.config.path
        self.topics = Topics(
            StateFile(OsDisk(), folder, "topics.json"), settings, self.clock.now_ms
        )
        self.groups = Groups(
            StateFile(OsDisk(), folder, "subscriptionGroup.json"), settings, self.clock.now_ms
        )
        self.offsets = Offsets(
            StateFile(OsDisk(), folder, "consumerOffset.json"), self.clock.now_ms
        )
        self.appends = Appender(self.store, lambda key: None)
        self.timers = Timers(self.clock)
        self.dead_letters = DeadLetters(
            self.store, self.topics, self.groups, self.offsets, self.appends
        )
        self.retries = Retries(
            self.store,
            self.topics,
            self.groups,
            self.appends,
            RULES,
            self.clock.now_ms,
            Random(1),
        )

    def group(self, name: str = "g", intervals_ms: list[int] | None = None, **fields: int) -> None:
        """Make a group."""
        group = GroupConfig(name=name, **fields)  # type: ignore[arg-type]
        self.groups.create(group, update=False, retry_intervals_ms=intervals_ms)

    def message(
        self, body: bytes = b"body", properties: dict[str, str] | None = None, topic: str = "T"
    ) -> Record:
        """Store a message, and return its record."""
        pairs = {"UNIQ_KEY": "id", "TAGS": "red"} if properties is None else properties
        self.store.append(make_run(topic, 0, [body], pairs))
        return self.last(topic)

    def last(self, topic: str, queue: int = 0) -> Record:
        """Return the newest record of a queue."""
        _, end = self.store.queue_bounds(topic, queue)
        return decode_record(self.store.read_queue(topic, queue, end - 1, 1, 1).records)

    def send_back(self, record: Record, group: str = "g", **fields: object) -> pb.SendBackReply:
        """Send RECORD back as the consumer that has it does."""
        reply, _ = self.retries.send_back(request_for(record, group, **fields))
        return reply

    def deliver(self) -> None:
        """Have whatever is scheduled from now on delivered at its time."""
        deliveries = DelayedDeliveries(self.appends)
        for queue in range(len(RULES.levels_ms)):
            self.appends.listen(SCHEDULE, queue, self._listener(deliveries, SCHEDULE, queue))
        self.appends.listen(TIMER, 0, self._listener(deliveries, TIMER, 0))

    def _listener(
        self, deliveries: DelayedDeliveries, topic: str, queue: int
    ) -> Callable[[], None]:
        offset = self.store.queue_bounds(topic, queue)[1]

        def heard() -> None:
            nonlocal offset
            found = self.store.read_queue(topic, queue, offset, 1, 1)
            offset = found.next_offset
            columns = parse_run(found.records, starts_of(found.sizes))
            due_ms, stamps = int(found.tags_codes[0]), None
            if topic == TIMER:
                due_ms = int(decode_record(found.records).properties["TIMER_DELIVER_MS"])
                stamps = TimedStamps(np.array([self.clock.now_ms()]), np.zeros(1, np.bool_), due_ms)
            self.timers.at(
                due_ms, lambda: _ignore(deliveries.deliver(found.records, columns, stamps))
            )

        return heard

    def close(self) -> None:
        self.store.close()


def _ignore(_: object) -> None:
    pass


def origin_of(original: Record) -> dict[str, str]:
    """Return the properties in which every copy of ORIGINAL, a `message`, tells what it is a copy of."""
    return {
        "UNIQ_KEY": "id",
        "TAGS": "red",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": original.message_id,
    }


def request_for(record: Record, group: str = "g", **fields: object) -> pb.SendBackRequest:
    """Return the request that sends RECORD back."""
    request = pb.SendBackRequest(
        group=group,
        topic=record.topic,
        queue=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request
