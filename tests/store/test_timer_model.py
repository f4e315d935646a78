"""The timers against a plain model: any order of entering, reading, handing on, stopping and being killed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pocketmq.proto.topics import TIMER_TOPIC

from ..runs import Hand, open_store
from ..timed import NOW, SECOND, Message, enter, keys_of, read_slot, send, waiting

WINDOW = 20

aheads = st.one_of(
    st.integers(-5, 2 * WINDOW),
    st.integers(-500, 500),
    st.just(3),
    st.sampled_from([19, 20, 25, 26]),
)


class Timers(RuleBasedStateMachine):
    """What waits is a dictionary: slot → ids in the order in which they were entered."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pocketmq-timers-"))
        self.clock = Hand(NOW)
        self.waits: dict[int, list[str]] = {}
        self.sent: list[Message] = []
        self.entered = 0
        self.open()

    def open(self) -> None:
        self.store = open_store(
            self.folder / "store",
            now_ms=self.clock,
            timer_log_file_size_bytes=1104,
            timer_roll_window_slots=WINDOW,
            log_file_size_bytes=1 << 16,
        )

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.store._close_files()
            shutil.rmtree(self.folder)

    @rule(rows=st.lists(st.tuples(aheads, st.booleans()), min_size=1, max_size=50))
    def send(self, rows: list[tuple[int, bool]]) -> None:
        unit = self.clock.now_ms // SECOND * SECOND
        made = [
            Message(f"m{len(self.sent) + n}", unit + ahead * SECOND, "x" if deletes else None)
            for n, (ahead, deletes) in enumerate(rows)
        ]
        send(self.store, made)
        self.sent += made

    @rule(most=st.sampled_from([1, 5, 200]))
    def enter(self, most: int) -> None:
        write = self.clock.now_ms // SECOND * SECOND
        count = enter(self.store, self.clock.now_ms, most)
        assert count == min(most, len(self.sent) - self.entered)
        for message in self.sent[self.entered : self.entered + count]:
            slot = self.filed(message.out_ms, write)
            name = f"-{message.key}" if message.deletes else message.key
            self.waits.setdefault(slot, []).append(name)
        self.entered += count

    def filed(self, out_ms: int, write_ms: int) -> int:
        ahead = (out_ms - write_ms) // SECOND
        if ahead >= WINDOW:
            ahead = WINDOW // 2 if ahead - WINDOW < WINDOW // 3 else WINDOW
        return max(write_ms + ahead * SECOND, self.store.timers.read_ms)

    @rule(seconds=st.integers(0, 15))
    def time_passes(self, seconds: int) -> None:
        self.clock.now_ms += seconds * SECOND + 137

    @rule()
    def tick(self) -> None:
        self.store.tick()

    @rule(ahead=st.integers(0, 30), page=st.sampled_from([1, 4, 500]))
    def read(self, ahead: int, page: int) -> None:
        slot = self.store.timers.read_ms + ahead * SECOND
        assert keys_of(self.store, slot, page=page) == self.waits.get(slot, [])

    @rule(seconds=st.integers(0, 25))
    def hand_on(self, seconds: int) -> None:
        # Never beyond the present second: a checkpoint of the future is not believed.
        present_ms = self.clock.now_ms // SECOND * SECOND + SECOND
        asked_ms = self.store.timers.read_ms + seconds * SECOND
        read_ms = max(self.store.timers.read_ms, min(asked_ms, present_ms))
        self.store.timers.delivered_up_to(read_ms)
        self.waits = {slot: keys for slot, keys in self.waits.items() if slot >= read_ms}

    @rule(share=st.floats(0, 1))
    def replace(self, share: float) -> None:
        timers = self.store.timers
        slot_ms = timers.next_slot(timers.read_ms)
        if slot_ms is None:
            return
        timers.delivered_up_to(slot_ms)
        positions = read_slot(self.store, slot_ms).records().positions
        gone = int(share * len(positions))
        timers.replace_slot(slot_ms, positions[gone:])
        self.waits[slot_ms] = self.waits[slot_ms][gone:]
        if not self.waits[slot_ms]:
            del self.waits[slot_ms]

    @rule()
    def stop(self) -> None:
        read_ms = self.store.timers.read_ms
        self.store.close()
        self.open()
        if self.store.timers.ring.is_open:
            assert self.store.timers.read_ms == read_ms

    @rule()
    def be_killed(self) -> None:
        """Then what was handed on and not noted yet waits again; nothing else changes."""
        read_ms = self.store.timers.read_ms
        self.store._close_files()
        self.open()
        timers = self.store.timers
        assert timers.read_ms <= max(read_ms, self.clock.now_ms)
        if timers.ring.is_open:
            found = waiting(self.store)
            assert {slot: keys for slot, keys in found.items() if slot >= read_ms} == self.waits
            timers.delivered_up_to(read_ms)

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        timers = self.store.timers
        assert timers.queue_offset == self.entered
        assert waiting(self.store) == self.waits
        sums = {
            slot: sum(-1 if key.startswith("-") else 1 for key in keys)
            for slot, keys in self.waits.items()
        }
        assert {slot: timers.count(slot) for slot in self.waits} == sums
        assert timers.pending == sum(sums.values())
        assert self.store.queue_bounds(TIMER_TOPIC, 0)[1] == len(self.sent)


TestTimers = pytest.mark.long(Timers.TestCase)
TestTimers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
