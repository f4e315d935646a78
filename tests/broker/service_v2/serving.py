"""All parts of a broker over a small store, asked as official clients ask, without a wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, Self

from google.protobuf import json_format

from pocketmq.broker.assembly import assemble
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.service_v2.service import CLIENT_ID, SERVICE
from pocketmq.proto import private_pool
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.record import Record, decode_record
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.store.disk import Disk
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import FakeCall
from ...recorded_names import topic
from ...runs import records_of, small_config

ME = {CLIENT_ID: "me"}
RECORDED_MS = 1_795_228_380_945  # when Apache's traffic was recorded


async def answered(call: FakeCall) -> None:
    """Return when CALL was answered."""
    while call.answer is None:  # noqa: ASYNC110 (it may be a thread that has to come round first)
        await asyncio.sleep(0)


class Served:
    """The parts of a broker that runs, on a clock that stands still until it is moved."""

    def __init__(
        self,
        path: Path,
        *,
        disk: Disk | None = None,
        now_ms: int = RECORDED_MS,
        flush: str = "async",
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock(now_ms)
        disk = disk or OsDisk()
        config = small_config(path / "store", log_file_size_bytes=1 << 24, flush=flush)
        self.store = MessageStore.open(config, disk=disk, now_ms=self.clock.now_ms)
        self.parts = assemble(
            BrokerConfig(**{"nameservers": (), **settings}),
            self.store,
            state_file=lambda name: StateFile(disk, config.path, name),
            clock=self.clock,
            wall=self.clock,
            random=Random(7),
            dial=Http2Channel,
            events=BrokerEvents(),
        )

    async def __aenter__(self) -> Self:
        self.store.start(asyncio.get_running_loop().call_soon_threadsafe)
        self.parts.start()
        self._methods = self.parts.methods()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.parts.stop_timers()
        await self.parts.close()
        self.store.close()

    def topic(self, name: str, kind: str = "", *, queues: int = 4, permission: int = 6) -> str:
        """Make a topic of type KIND."""
        self.parts.topics.create(topic(name, kind, queues, permission), update=False)
        return name

    def begin(self, method: str, request: Any) -> FakeCall:
        """Call METHOD, and return the call, answered or not."""
        call = FakeCall(metadata=ME)
        answer = self._methods[f"/{SERVICE}/{method}"].handler(request, call)
        if hasattr(answer, "status"):
            call.reply(answer)
        return call

    async def ask(self, method: str, request: Any) -> Any:
        """Return the answer to REQUEST, a message or its proto JSON."""
        if isinstance(request, dict):
            kind = getattr(v2, f"{method}Request")
            request = json_format.ParseDict(request, kind(), descriptor_pool=private_pool.POOL)
        call = self.begin(method, request)
        await answered(call)
        return call.answer

    async def send(self, topic: str, *bodies: bytes, **system: Any) -> v2.SendMessageResponse:
        """Send a message of each of BODIES, with the ids "id-0", "id-1" …"""
        fields: list[dict[str, Any]] = [
            {"message_id": f"id-{number}"} | system for number in range(len(bodies))
        ]
        messages = [
            v2.Message(
                topic={"name": topic}, body=body, system_properties=v2.SystemProperties(**each)
            )
            for each, body in zip(fields, bodies, strict=True)
        ]
        found: v2.SendMessageResponse = await self.ask(
            "SendMessage", v2.SendMessageRequest(messages=messages)
        )
        return found

    def records(self, topic: str, queues: int = 4) -> list[Record]:
        """Return the records of TOPIC, queue by queue."""
        return [
            record for queue in range(queues) for record in records_of(self.store, topic, queue)
        ]

    def record_at(self, topic: str, queue: int, offset: int) -> Record:
        """Return the record at OFFSET of a queue."""
        return decode_record(self.store.read_queue(topic, queue, offset, 1, 1 << 20).records)
