"""The whole store against lists of bodies, through restarts, clean and not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..runs import Hand, make_run, open_store, records_of, small_config

TOPICS = st.sampled_from(["A", "B", "%RETRY%g"])
QUEUES = st.integers(0, 1)
BODIES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12)
KEYS = st.sampled_from(["", "k1", "k2", "k1 k2"])


class Model(RuleBasedStateMachine):
    """Every queue is a list of (body, keys)."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.path = Path(self.home.name) / "store"
        self.clock = Hand()
        self.lists: dict[tuple[str, int], list[tuple[bytes, str]]] = {}
        self.store: MessageStore | None = None

    @initialize()
    def open(self) -> None:
        self.store = open_store(self.path, now_ms=self.clock)

    @rule(topic=TOPICS, queue=QUEUES, bodies=BODIES, keys=KEYS, whole=st.booleans())
    def append(self, topic: str, queue: int, bodies: list[bytes], keys: str, whole: bool) -> None:
        assert self.store
        self.clock.now_ms += 7
        if sum(len(body) + 120 for body in bodies) > 4000:
            whole = False
        known = self.lists.setdefault((topic, queue), [])
        properties = {"KEYS": keys} if keys else {}

        appended = self.store.append(make_run(topic, queue, bodies, properties, whole=whole))

        assert appended.first_queue_offset == len(known)
        known += [(body, keys) for body in bodies]

    @rule()
    def tick(self) -> None:
        assert self.store
        self.clock.now_ms += 2_000
        self.store.tick()

    @rule()
    def restart_cleanly(self) -> None:
        assert self.store
        self.store.close()
        self.store = open_store(self.path, now_ms=self.clock)
        assert self.store.recovery.clean
        assert self.store.recovery.findings == []

    @rule()
    def restart_after_a_kill(self) -> None:
        """A killed process: what it wrote is in the page cache, nothing was closed."""
        assert self.store
        self.store._close_files()
        self.store = open_store(self.path, now_ms=self.clock)
        assert not self.store.recovery.clean

    @rule()
    def look(self) -> None:
        reader = MessageStore.open(
            small_config(self.path), disk=OsDisk(), now_ms=self.clock, read_only=True
        )
        self.compare(reader)
        reader.close()

    @invariant()
    def agrees(self) -> None:
        if self.store is not None:
            self.compare(self.store)

    def compare(self, store: MessageStore) -> None:
        assert store.queue_names() == sorted(self.lists)
        ends = []
        for (topic, queue), known in self.lists.items():
            records = records_of(store, topic, queue)
            assert [(one.body, one.properties.get("KEYS", "")) for one in records] == known
            assert [one.queue_offset for one in records] == list(range(len(known)))
            assert all(one.crc_ok for one in records)
            ends += [one.log_offset for one in records]
        assert store.dispatched_offset == store.max_log_offset
        for topic in {topic for topic, _ in self.lists}:
            wanted = sorted(
                record.log_offset
                for (one, queue), _ in self.lists.items()
                if one == topic
                for record in records_of(store, one, queue)
                if "k1" in record.properties.get("KEYS", "").split()
            )
            found = store.lookup(topic, "k1")
            assert sorted(set(found)) == sorted(set(wanted))[-len(set(found)) :]
            assert bool(found) == bool(wanted)

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        self.home.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
