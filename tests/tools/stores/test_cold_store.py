"""A store opened cold, held against what Apache's own classes found in the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import StoreMismatch
from pocketmq.store.opened_store import OpenedQueue, OpenedStore
from pocketmq.tools.stores import RecoveryName
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation

from ...recorded import by_size, expected, is_accepted, recorded_names, recorded_store, settings
from ...stores import fingerprint

ACCEPTED = [name for name in recorded_names() if is_accepted(name)]
REFUSED = [name for name in recorded_names() if not is_accepted(name)]


def opened(name: str, tmp_path: Path, recovery: RecoveryName = "apache") -> OpenedStore:
    store = recorded_store(name, tmp_path / "store")
    location = StoreLocation(str(store), str(store), "broker-a")
    now_ms = SystemClock().now_ms()
    return open_cold(location, now_ms=now_ms, given=settings(name), recovery=recovery)


def bounds_of(document: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    return sorted(
        (queue["topic"], queue["queueId"], queue["minOffset"], queue["maxOffset"])
        for queue in document["queues"]
    )


@pytest.mark.parametrize("name", by_size(ACCEPTED))
def test_queue_bounds_are_those_of_apaches_broker(name: str, tmp_path: Path) -> None:
    store = opened(name, tmp_path)

    found = [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues()]

    # The delay service opens all eighteen queues; files or not, an empty one tells nothing.
    wanted = bounds_of(expected(name))
    assert [one for one in found if one[0] != "SCHEDULE_TOPIC_XXXX" or one[3]] == [
        one for one in wanted if one[0] != "SCHEDULE_TOPIC_XXXX" or one[3]
    ]
    assert (store.log_begin, store.log_end) == (
        expected(name)["minPhyOffset"],
        expected(name)["maxPhyOffset"],
    )


@pytest.mark.parametrize("name", by_size(ACCEPTED))
def test_committed_offsets_are_those_of_apaches_broker(name: str, tmp_path: Path) -> None:
    store = opened(name, tmp_path)

    found: dict[str, dict[str, int]] = {}
    for one in store.committed_offsets():
        found.setdefault(f"{one.topic}@{one.group}", {})[str(one.queue_id)] = one.offset

    wanted = expected(name)["config"]["consumerOffsets"]
    assert found == {key: queues for key, queues in wanted.items() if queues}


@pytest.mark.parametrize("name", REFUSED)
def test_a_store_that_apache_refuses_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreMismatch, match="would not start"):
        opened(name, tmp_path)


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
def test_a_refusal_names_the_table_that_cannot_be_read(
    recovery: RecoveryName, tmp_path: Path
) -> None:
    store = recorded_store("basic", tmp_path / "store")
    for name in ("topics.json", "topics.json.bak"):
        (store / "config" / name).write_text("[")
    location = StoreLocation(str(store), str(store), "broker-a")

    with pytest.raises(
        StoreMismatch,
        match=rf"would not start on .*: {store}/config/topics.json and its \.bak cannot",
    ):
        open_cold(location, now_ms=SystemClock().now_ms(), recovery=recovery)


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
@pytest.mark.parametrize("name", ["checkpoint", "config/delayOffset.json", "config/timercheck"])
def test_a_refusal_names_the_folder_that_stands_for_a_file(
    name: str, recovery: RecoveryName, tmp_path: Path
) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (store / name).unlink()
    (store / name).mkdir()
    location = StoreLocation(str(store), str(store), "broker-a")

    with pytest.raises(
        StoreMismatch,
        match=rf"{store}/{name} is, or contains, a folder .*: move it away; `pocketmq",
    ):
        open_cold(location, now_ms=SystemClock().now_ms(), recovery=recovery)


def test_our_recovery_shows_our_bounds(tmp_path: Path) -> None:
    store = opened("damaged-missing-last-queue-file", tmp_path, "pocketmq")

    assert store.queue("Fill0", 0) == OpenedQueue("Fill0", 0, 0, 960)  # Apache: 900
    assert store.report is not None
    assert store.report.findings


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
def test_not_a_byte_is_written(recovery: RecoveryName, tmp_path: Path) -> None:
    store = recorded_store("unclean", tmp_path / "store")
    before = fingerprint(store)
    location = StoreLocation(str(store), str(store), "broker-a")

    opened = open_cold(
        location, now_ms=SystemClock().now_ms(), given=settings("unclean"), recovery=recovery
    )

    assert opened.queues()
    assert not opened.clean
    assert fingerprint(store) == before


def test_a_queue_that_only_its_topic_knows_is_empty(tmp_path: Path) -> None:
    store = opened("consumption", tmp_path)

    assert store.queue("StaticTopic", 3) == OpenedQueue("StaticTopic", 3, 0, 0, has_files=False)
    assert store.queue("StaticTopic", 4) is None
    assert store.queue("Nowhere", 0) is None


def test_without_the_index_queues_are_the_same(tmp_path: Path) -> None:
    root = recorded_store("unclean", tmp_path / "store")
    location = StoreLocation(str(root), str(root), "broker-a")
    now_ms = SystemClock().now_ms()

    whole, without = (
        open_cold(location, now_ms=now_ms, given=settings("unclean"), index=index)
        for index in (True, False)
    )

    assert without.queues() == whole.queues()
    assert without.log_end == whole.log_end
    assert len(without.reading.index.files) < len(whole.reading.index.files)
