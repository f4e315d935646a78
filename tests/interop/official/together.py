"""Scenarios of several languages, or of the broker: all on one topic; a stop, and `kill -9`, amid them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from .driver import ClientError, Message
from .stage import Stage

#: How long a client may take until it gets through to a broker that is there again.
_RECONNECT_S = 60.0


async def one_topic(stages: Sequence[Stage]) -> None:
    """Every language gets what all languages sent to one topic."""
    topic = await stages[0].topic()
    producers = await asyncio.gather(*[stage.producer(topic) for stage in stages])
    consumers = await asyncio.gather(*[stage.simple(topic) for stage in stages])
    wanted = set()
    for stage, producer in zip(stages, producers, strict=True):
        for number in range(4):
            body = f"{stage.program.name} {number} äöü"
            properties = {"sent by": stage.program.name}
            await stage.send(producer, topic, body, tag="t", keys=["k"], properties=properties)
            wanted.add((body, "t", "k", stage.program.name))

    found = await asyncio.gather(
        *[
            stage.consume(consumer, len(wanted))
            for stage, consumer in zip(stages, consumers, strict=True)
        ]
    )

    for messages in found:
        assert {
            (m["body"], m["tag"], *m["keys"], m["properties"]["sent by"]) for m in messages
        } == wanted


class Survivor:
    """A producer and a consumer of one language that stay connected while the broker ends and is started again."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._sent: dict[str, str] = {}
        self._acknowledged: set[str] = set()

    async def before(self) -> None:
        """Send 20 messages, receive some, acknowledge half of these; leave the rest in flight."""
        stage = self.stage
        self.topic, group = await stage.topic(), await stage.group()
        self.producer = await stage.producer(self.topic)
        self.consumer = await stage.simple(self.topic, group)
        await self._send("before", 20)
        held = await stage.collect(self.consumer, 8, batch=8)
        await self._acknowledge(held[::2])
        self._held = held[1::2]
        self.pushed = None
        if "push" not in stage.program.lacks:
            self.pushed = await stage.push(self.topic)
            await stage.pushed(self.pushed, 20)

    async def after(self) -> None:
        """Send 20 more, acknowledge what is in flight still, and receive exactly the rest."""
        await self._send("after", 20)
        await self._acknowledge(self._held)
        left = set(self._sent) - self._acknowledged
        found: set[str] = set()
        async with asyncio.timeout(_RECONNECT_S):
            while not left <= found:
                messages = await self._receive()
                await self._acknowledge(messages)
                found |= {message["id"] for message in messages}
        again = sorted(self._sent[one] for one in found - left)
        assert not again, f"acknowledged, and came again: {again}"
        if self.pushed is not None:
            late: set[str] = set()
            async with asyncio.timeout(_RECONNECT_S):
                while not {one for one, text in self._sent.items() if "after" in text} <= late:
                    late |= {(await self.stage.driver.event(self.pushed, _RECONNECT_S))["id"]}

    async def _send(self, what: str, count: int) -> None:
        for number in range(count):
            text = f"{what} {number}"
            async with asyncio.timeout(_RECONNECT_S):
                while text not in self._sent.values():
                    try:
                        self._sent[await self.stage.send(self.producer, self.topic, text)] = text
                    except ClientError:
                        await asyncio.sleep(0.5)

    async def _receive(self) -> list[Message]:
        try:
            return await self.stage.receive(self.consumer)
        except ClientError:
            await asyncio.sleep(0.5)
            return []

    async def _acknowledge(self, messages: list[Message]) -> None:
        async with asyncio.timeout(_RECONNECT_S):
            for message in messages:
                while message["id"] not in self._acknowledged:
                    try:
                        await self.stage.ack(self.consumer, [message])
                        self._acknowledged.add(message["id"])
                    except ClientError as error:
                        if error.code == v2.INVALID_RECEIPT_HANDLE:
                            raise
                        await asyncio.sleep(0.5)


async def survived(
    stages: Sequence[Stage], end_and_start: Callable[[], None]
) -> dict[str, BaseException | None]:
    """END AND START the broker while clients of all languages are connected; return what became of each language."""
    survivors = [Survivor(stage) for stage in stages]
    begun = await asyncio.gather(*[one.before() for one in survivors], return_exceptions=True)
    await asyncio.to_thread(end_and_start)
    able = [one for one, failure in zip(survivors, begun, strict=True) if failure is None]
    ended = await asyncio.gather(*[one.after() for one in able], return_exceptions=True)
    found = {one.stage.program.name: failure for one, failure in zip(survivors, begun, strict=True)}
    return found | {
        one.stage.program.name: failure for one, failure in zip(able, ended, strict=True)
    }
