"""Any order of commits, repeats, resets, syncs, saves, stops and kills against a plain table of what they come to."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pocketmq.proto.errors import OffsetMoved
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.topics import COMMIT_TOPIC

from ...fake_calls import FakeCall
from .committing import GROUP, SOURCE, TARGET, Desk, request_of

QUEUES = 2
INPUTS = 200


class Committing(RuleBasedStateMachine):
    """A broker's atomic commits, beside where the group stands and what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._runs = 0
        self._stands: dict[int, int] = {}
        self._sent: list[str] = []
        self._decided: dict[str, pb.AtomicCommitRequest] = {}
        self._calls: list[tuple[str, FakeCall]] = []

    @initialize()
    def start(self) -> None:
        self._desk = Desk(self._path(), by_hand=True)
        self._desk.start()
        for name in (SOURCE, TARGET):
            self._desk.make_topic(name)
        for queue in range(QUEUES):
            self._desk.send(["input"] * INPUTS, queue=queue)
        self._desk.sync()

    def _path(self) -> Path:
        return Path(self._folder.name) / str(self._runs)

    @rule(
        ends=st.dictionaries(st.integers(0, QUEUES - 1), st.integers(1, 5), min_size=1),
        outputs=st.dictionaries(st.integers(0, 2), st.integers(1, 3)),
    )
    def commit(self, ends: dict[int, int], outputs: dict[int, int]) -> None:
        name = f"c{len(self._decided)}.{self._runs}"
        offsets = {}
        for queue, count in ends.items():
            begin = self._stands.get(queue, -1)
            if max(begin, 0) + count > INPUTS:
                return
            offsets[queue] = (begin, max(begin, 0) + count)
        bodies = {
            (TARGET, queue): [f"{name} {queue}.{number}" for number in range(count)]
            for queue, count in outputs.items()
        }
        request = request_of(name, offsets, bodies)
        call = self._desk.ask(request)
        if not self._desk.commits._has_begun:
            self._desk.sync()  # The first of a run waits for the file.
        self._calls.append((name, call))
        self._decided[name] = request
        self._stands |= {queue: end for queue, (_, end) in offsets.items()}
        self._sent += [body for row in bodies.values() for body in row]

    @precondition(lambda self: self._decided)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self._decided)))
        self._calls.append((name, self._desk.ask(self._decided[name])))

    @precondition(lambda self: self._stands and self._decided and self._desk.commits._has_begun)
    @rule(by=st.integers(1, 9))
    def come_late(self, by: int) -> None:
        queue, stands_at = next(iter(self._stands.items()))
        end = min(stands_at + 1, INPUTS)
        with pytest.raises(OffsetMoved):
            self._desk.commit("late", {queue: (stands_at - by, end)}, {(TARGET, 0): ["no"]})

    @rule(queue=st.integers(0, QUEUES - 1), offset=st.integers(0, INPUTS))
    def reset(self, queue: int, offset: int) -> None:
        saved: list[object] = []
        self._desk.offsets.commit(SOURCE, GROUP, queue, offset)
        self._desk.offsets.when_saved(saved.append)
        self._desk.sync()
        assert saved == [None]
        self._stands[queue] = offset

    @rule()
    def sync_once(self) -> None:
        self._desk.flusher.do_next()

    @rule()
    def save(self) -> None:
        self._desk.save()
        self._desk.saver.do_next()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self._desk.sync()
            self._desk.stop()
            self._calls_are_answered()
        else:
            self._desk.kill()
            before = self._path()
            self._runs += 1
            shutil.copytree(before, self._path())
        self._calls.clear()
        self._desk = Desk(self._path(), by_hand=True)
        self._desk.start()

    def _calls_are_answered(self) -> None:
        for name, call in self._calls:
            assert len(call.answer.places) == len(self._decided[name].runs)

    @invariant()
    def the_group_stands_where_it_was_put(self) -> None:
        if hasattr(self, "_desk"):
            found = {queue: self._desk.committed(queue) for queue in self._stands}
            assert found == self._stands

    @invariant()
    def messages_are_there_once_when_the_device_has_all(self) -> None:
        if not hasattr(self, "_desk") or self._desk.flusher.jobs or self._desk.saver.jobs:
            return
        found = [
            body
            for queue in range(3)
            if self._desk.store.queue_bounds(TARGET, queue) != (0, 0)
            for body in self._desk.bodies(TARGET, queue)
        ]
        assert sorted(found) == sorted(self._sent)
        self._calls_are_answered()
        _, high = self._desk.store.queue_bounds(COMMIT_TOPIC, 0)
        assert high == len(self._decided)

    def teardown(self) -> None:
        if hasattr(self, "_desk"):
            self._desk.kill()
        self._folder.cleanup()


TestCommitting = pytest.mark.long(Committing.TestCase)
TestCommitting.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
