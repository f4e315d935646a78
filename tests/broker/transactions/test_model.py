"""Any order of half messages, outcomes, time, stops and kills against a plain table of what they must come to."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import StoreFull, TransactionNotFound, TransactionResolved
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from pocketmq.store.os_disk import OsDisk

from .transacting import Hall, hall_config

CHECKS_MAX = 3
OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"


class Transacting(RuleBasedStateMachine):
    """A broker's transactions, beside a table of their states by id."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory()
        self._states: dict[str, str] = {}
        self._begun_ms: dict[str, int] = {}
        self._clock = VirtualClock()

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @initialize()
    def start(self) -> None:
        async def opened() -> Hall:
            made = Hall(
                hall_config(Path(self._folder.name)),
                OsDisk(),
                VirtualClock(self._clock.now_ms()),
                transaction_checks_max=CHECKS_MAX,
            )
            made.start()
            return made

        self._hall: Hall = self.run(opened())
        self._clock = self._hall.clock

    @rule(count=st.integers(1, 4), queue=st.integers(0, 1))
    def begin(self, count: int, queue: int) -> None:
        ids = [f"t{len(self._states) + number}" for number in range(count)]

        async def begun() -> None:
            self._hall.begin(*ids, queue=queue)

        self.run(begun())
        self._states |= dict.fromkeys(ids, OPEN)
        self._begun_ms |= dict.fromkeys(ids, self._clock.now_ms())

    @precondition(lambda self: self._states)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The sender did not hear that its half message was stored, and sends it again."""
        open_ids = [unique for unique, state in self._states.items() if state == OPEN]
        if not open_ids:
            return
        unique = data.draw(st.sampled_from(open_ids))

        async def begun() -> None:
            half = self._hall.transactions._halves.open.get("P", unique)
            assert half is not None
            self._hall.begin(unique, queue=half.queue)

        self.run(begun())
        self._begun_ms[unique] = -1  # When it is given up depends on more than its beginning.

    @precondition(lambda self: self._states)
    @rule(data=st.data(), commit=st.booleans(), count=st.integers(1, 3))
    def end(self, data: st.DataObject, commit: bool, count: int) -> None:
        ids = data.draw(
            st.lists(st.sampled_from(sorted(self._states)), min_size=1, max_size=count, unique=True)
        )
        self.run(self._end(ids, commit=commit))

    async def _end(self, ids: list[str], *, commit: bool) -> None:
        resolution = pb.COMMIT if commit else pb.ROLLBACK
        wanted = COMMITTED if commit else ROLLED_BACK
        for unique in ids:
            state = self._states[unique]
            try:
                reply = await self._hall.end(unique, resolution)
            except TransactionResolved:
                assert state in {COMMITTED, ROLLED_BACK, GIVEN_UP} - {wanted}
                assert commit or state == COMMITTED
                continue
            assert reply.repeated == (state != OPEN)
            assert state in (OPEN, wanted) or (state == GIVEN_UP and not commit)
            assert (reply.queue_offset >= 0) == commit
            if state == OPEN:
                self._states[unique] = wanted

    @rule(group=st.sampled_from(["Q", "P"]))
    def end_of_nobody(self, group: str) -> None:
        before = self._hall.store.max_log_offset
        try:
            self.run(self._hall.end("nobody", group=group))
        except TransactionNotFound:
            assert self._hall.store.max_log_offset == before
        else:
            raise AssertionError("answered for nobody")

    @rule(by_ms=st.sampled_from([0, 1, 5_999, 6_000, 30_000, 70_000, 200_000]))
    def wait(self, by_ms: int) -> None:
        self.run(self._clock.advance(by_ms))
        still_open = {half.transaction_id for half in self._hall.transactions._halves.open}
        patience_ms = 6_000 + CHECKS_MAX * 30_000
        for unique, state in self._states.items():
            if state == OPEN and unique not in still_open:
                begun_ms = self._begun_ms[unique]
                assert begun_ms < 0 or self._clock.now_ms() >= begun_ms + patience_ms
                self._states[unique] = GIVEN_UP
            elif state == OPEN and self._begun_ms[unique] >= 0:
                assert self._clock.now_ms() < self._begun_ms[unique] + patience_ms

    @rule()
    def flush(self) -> None:
        self._hall.store.flush()
        halves = self._hall.transactions._halves
        halves._progress._flushed(self._hall.store.max_log_offset)

    @rule()
    def stop(self) -> None:
        self.run(self._hall.stop())
        self.start()

    @rule(save=st.booleans())
    def kill(self, save: bool) -> None:
        if save:
            self._hall.offsets.save()
        self.run(self._hall.kill())
        self.start()

    @rule(data=st.data())
    def kill_amid_commits(self, data: st.DataObject) -> None:
        """The process ends between a committed message and its mark."""
        open_ids = [unique for unique, state in self._states.items() if state == OPEN]
        if not open_ids:
            return
        unique = data.draw(st.sampled_from(open_ids))
        append = self._hall.store.append_many

        def without_marks(runs: Any) -> Any:
            return [StoreFull("killed")] if runs[0].topic == OP_HALF_TOPIC else append(runs)

        self._hall.store.append_many = without_marks  # type: ignore[method-assign]
        self.run(self._end([unique], commit=True))
        self.run(self._hall.kill())
        self.start()

    @invariant()
    def everything_is_where_it_must_be(self) -> None:
        if not hasattr(self, "_hall"):
            return
        halves = self._hall.transactions._halves
        halves.open.check()
        delivered = Counter(self._hall.bodies("T", 0) + self._hall.bodies("T", 1))
        assert delivered == Counter(
            unique for unique, state in self._states.items() if state == COMMITTED
        )
        assert set(self._hall.bodies(CHECK_MAX_TIME_TOPIC)) == {
            unique for unique, state in self._states.items() if state == GIVEN_UP
        }
        assert {half.transaction_id for half in halves.open} == {
            unique for unique, state in self._states.items() if state == OPEN
        }
        self._check_progress()

    def _check_progress(self) -> None:
        """What a Java broker would begin from passes no open half message, and finds the marks of all others."""
        half, op = self._hall.progress()
        open_halves = self._hall.transactions._halves.open
        lowest = open_halves.lowest(1 << 60)
        assert half is None or half <= lowest
        marked = {
            int(number)
            for record in self._hall.records(OP_HALF_TOPIC)
            if record.queue_offset >= (op or 0)
            for number in record.body.split(b",")
            if number
        }
        still = {offset for one in open_halves for offset in (one.queue_offset, *one.also)}
        unresolved = {
            record.queue_offset
            for record in self._hall.records(HALF_TOPIC)
            if record.queue_offset >= (half or 0) and record.queue_offset not in marked
        }
        assert unresolved == still

    def teardown(self) -> None:
        if hasattr(self, "_hall"):
            self.run(self._hall.stop())
        self._loop.close()
        self._folder.cleanup()


TestTransacting = pytest.mark.long(Transacting.TestCase)
TestTransacting.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
