"""Failed messages in time: from the first failure to the dead letters, and when a consumer is answered."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from pocketmq.proto.errors import StoreFull
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ....fake_calls import FakeCall
from .retrying import CLASSIC, HOUR, MINUTE, SECOND, Retrying, request_for


class TestInTime:
    """From the first failure to the dead letters, on a virtual clock."""

    async def failing(
        self, broker: Retrying, group: str, hours: float
    ) -> tuple[list[int], list[int]]:
        """Fail each delivery at once for HOURS; return the waits between them, and when they were dead."""
        broker.deliver()
        instants = [broker.clock.now_ms()]
        dead: list[int] = []
        retry, letters = f"%RETRY%{group}", f"%DLQ%{group}"

        def failed() -> None:
            instants.append(broker.clock.now_ms())
            broker.send_back(broker.last(retry), group)

        broker.appends.listen(retry, 0, failed)
        broker.appends.listen(letters, 0, lambda: dead.append(broker.clock.now_ms()))
        broker.timers.start()
        broker.send_back(broker.message(), group)
        await broker.clock.advance(round(hours * HOUR))
        await broker.timers.stop()
        waits = [later - earlier for earlier, later in pairwise(instants)]
        return waits, dead

    async def test_sixteen_retries_take_four_hours_and_46_minutes_in_all(
        self, broker: Retrying
    ) -> None:
        began_ms, processor = broker.clock.now_ms(), time.process_time()

        waits, dead = await self.failing(broker, "g", 24)

        assert time.process_time() - processor < 1
        assert waits == CLASSIC
        assert (
            dead == [began_ms + 4 * HOUR + 46 * MINUTE - 20 * SECOND] == [began_ms + sum(CLASSIC)]
        )
        letter = broker.last("%DLQ%g")
        assert letter.reconsume_times == 17
        assert letter.properties["DLQ_REASON"] == "failed 17 times"
        assert letter.properties["RETRY_TOPIC"] == letter.properties["DLQ_ORIGIN_TOPIC"] == "T"
        origin = broker.last("T").message_id
        assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin

    async def test_a_group_that_allows_more_has_them_every_two_hours(
        self, broker: Retrying
    ) -> None:
        broker.group("patient", retry_times_max=20)

        waits, dead = await self.failing(broker, "patient", 24)

        assert waits == [*CLASSIC, *[2 * HOUR] * 4]
        assert len(dead) == 1

    async def test_own_intervals_are_kept_to_the_millisecond_and_the_last_one_repeats(
        self, broker: Retrying
    ) -> None:
        own = [10 * SECOND, 12_345, 1 * MINUTE, 90 * SECOND]
        broker.group("own", own, retry_times_max=7)

        waits, dead = await self.failing(broker, "own", 1)

        assert waits == [*own, *[90 * SECOND] * 3]
        assert len(dead) == 1
        assert "TIMER_DELIVER_MS" in broker.last("%DLQ%own").properties

    async def test_nothing_comes_before_its_time(self, broker: Retrying) -> None:
        broker.deliver()
        broker.timers.start()
        broker.send_back(broker.message())

        await broker.clock.advance(10 * SECOND - 1)
        assert broker.store.queue_bounds("%RETRY%g", 0) == (0, 0)
        await broker.clock.advance(1)
        assert broker.store.queue_bounds("%RETRY%g", 0) == (0, 1)
        await broker.timers.stop()


class TestAnswers:
    """The answer goes out when the copy is as safe as the store promises."""

    async def test_with_synchronous_flushing_it_waits_for_the_device(self, tmp_path: Path) -> None:
        broker = Retrying(tmp_path)
        broker.group()
        original = broker.message()
        safe: list[Any] = []
        broker.appends.when_safe = lambda end_offset, done: safe.append((end_offset, done))  # type: ignore[method-assign]
        (method,) = broker.retries.methods()
        good, late = FakeCall(), FakeCall()

        for call in (good, late):
            method.handler(request_for(original), call)

        assert good.answers == late.answers == []
        (_, done), (end_offset, done_too) = safe
        assert end_offset == broker.store.max_log_offset
        done(None)
        done_too(StoreFull("too late"))
        await asyncio.sleep(0)
        assert isinstance(good.answer, pb.SendBackReply)
        assert isinstance(late.error, StoreFull)
        broker.close()
