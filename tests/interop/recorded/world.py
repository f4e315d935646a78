"""The broker that recorded calls are made on again. Time is virtual and begins where the recording does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.config import BrokerConfig
from pocketmq.proto.clock import VirtualClock
from pocketmq.store.format.state_tables import GroupConfig, TopicConfig
from pocketmq.store.os_disk import OsDisk

from ...integration.whole_broker import store_config
from ...recorded_names import save_tables
from .calls import PORT, Reach

BROKER: Final = "broker-a"


@asynccontextmanager
async def recorded_world(
    folder: Path, topics: Mapping[str, TopicConfig], groups: Mapping[str, GroupConfig], now_ms: int
) -> AsyncIterator[tuple[VirtualClock, Reach]]:
    """Run a broker in FOLDER that has TOPICS and GROUPS, at NOW_MS."""
    config = store_config(folder, log_file_size_bytes=16 << 20)
    save_tables(config.path, topics, groups)
    clock, reach = VirtualClock(now_ms), Reach()
    broker = Broker.build(
        BrokerConfig(name=BROKER, port=PORT, nameservers=()),
        config,
        disk=OsDisk(),
        clock=clock,
        random=Random(0),
        network=Network(make_carrier=reach.make),
    )
    await broker.start()
    try:
        yield clock, reach
    finally:
        await broker.stop()
