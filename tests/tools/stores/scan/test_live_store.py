"""A store is scanned while its broker appends: every message once, none missing, and no error."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.record import NO_HOST, encode_run
from pocketmq.proto.run import check_run
from pocketmq.store import MessageStore, OsDisk, StoreConfig
from pocketmq.tools.stores.locations import locate
from pocketmq.tools.stores.scan.bad_records import BadRecords
from pocketmq.tools.stores.scan.conditions import Conditions
from pocketmq.tools.stores.scan.scan import Scan, ScanOptions

TOPIC, QUEUES, RUN = "Live", 3, 20
RUNS_A_SCAN = 100


class Writer(threading.Thread):
    """Appends runs to all queues in turn, as many as it is let, until it is told to stop."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.appended = 0
        self.stopping = threading.Event()
        self.runs = threading.Semaphore(0)
        self.failure: BaseException | None = None
        config = StoreConfig(
            path=str(root),
            log_file_size_bytes=1 << 16,
            queue_file_size_bytes=20 * 100,
            index_slots=100,
            index_entries=400,
        )
        self._now_ms = 1_700_000_000_000
        self._store = MessageStore.open(config, disk=OsDisk(), now_ms=lambda: self._now_ms)

    def run(self) -> None:
        try:
            while self.runs.acquire() and not self.stopping.is_set():
                self.append()
        except BaseException as error:  # The test tells it.
            self.failure = error

    def append(self) -> None:
        queue = self.appended // RUN % QUEUES
        messages = [(b"b" * (number % 90), b"KEYS\x01k\x02") for number in range(RUN)]
        messages = [(body or b"-", properties) for body, properties in messages]
        records, sizes = encode_run(
            TOPIC, queue, messages, born_timestamp_ms=self._now_ms, born_host=NO_HOST
        )
        run = check_run(records, sizes, TOPIC, queue)
        self._now_ms += 1
        self._store.append(run)
        self.appended += RUN

    def close(self) -> None:
        self.stopping.set()
        self.runs.release()
        if self.is_alive():
            self.join()
        self._store.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "store")
    writer.append()
    yield writer
    writer.close()
    assert writer.failure is None


@pytest.mark.long
@pytest.mark.parametrize("conditions", [Conditions(), Conditions(topics=frozenset({TOPIC}))])
def test_every_message_is_read_once_while_more_come(
    conditions: Conditions, writer: Writer, tmp_path: Path
) -> None:
    columns = ("queue", "queue_offset", "log_offset")
    scan = Scan(ScanOptions(columns=columns, split_bytes=20_000), conditions)
    writer.start()

    for _ in range(15):
        writer.runs.release(RUNS_A_SCAN)
        before = writer.appended
        tasks = scan.plan(locate([str(tmp_path / "store")], broker_name="b"))
        after = writer.appended + RUN
        rows: list[dict[str, Any]] = []
        for task in tasks:
            for batch in scan.read(task, BadRecords("fail")):
                rows += batch.to_pylist()
        by_queue: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_queue[row["queue"]].append(row["queue_offset"])
        assert before <= len(rows) <= after
        for offsets in by_queue.values():
            assert sorted(offsets) == list(range(len(offsets)))
