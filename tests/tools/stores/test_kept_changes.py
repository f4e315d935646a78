"""Topics and groups of the last second before a kill, which only the journal has, as the tools see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.store.file_table import FileTable
from pocketmq.store.format.state_tables import GROUPS, TOPICS, GroupConfig, TopicConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.view import StoreView
from pocketmq.tools.diff.side import Side
from pocketmq.tools.inspect.stored_tables import Tables
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation

from ...runs import make_run, open_store
from ...store.table_worlds import open_changes

NOW_MS = 1_700_000_000_000


@pytest.fixture
def killed(tmp_path: Path) -> str:
    """A store whose broker was killed before it wrote the tables: "gone" was dropped, "old" changed, others made."""
    root = tmp_path / "store"
    store = open_store(root)
    store.append(make_run("new", 0, [b"one"]))
    topics, groups = tables_at(root)
    for name in ("gone", "old"):
        topics.put(name, TopicConfig(name=name, read_queues=4, write_queues=4))
    topics.close()
    topics.put("new", TopicConfig(name="new", read_queues=1, write_queues=1))
    topics.put("old", TopicConfig(name="old", read_queues=9, write_queues=9))
    topics.drop("gone")
    groups.put("g", GroupConfig(name="g"))
    store._close_files()
    return str(root)


def tables_at(root: Path) -> tuple[FileTable[TopicConfig], FileTable[GroupConfig]]:
    """Return topics and groups of the store at ROOT, as a broker has them."""
    changes = open_changes(root)
    topics, groups = (StateFile(OsDisk(), str(root), form.file) for form in (TOPICS, GROUPS))
    return (
        FileTable(topics, TOPICS, lambda: NOW_MS, changes=changes[0]),
        FileTable(groups, GROUPS, lambda: NOW_MS, changes=changes[1]),
    )


def queues_of(topics: dict[str, TopicConfig]) -> dict[str, int]:
    return {name: topics[name].read_queues for name in ("new", "old", "gone") if name in topics}


def test_a_store_opened_cold_our_way_has_them_and_apaches_way_has_not(killed: str) -> None:
    location = StoreLocation(killed, killed, "broker-a")

    ours = open_cold(location, now_ms=NOW_MS, recovery="pocketmq")
    theirs = open_cold(location, now_ms=NOW_MS, recovery="apache")

    assert (queues_of(ours.topics), "g" in ours.groups) == ({"new": 1, "old": 9}, True)
    assert (queues_of(theirs.topics), "g" in theirs.groups) == ({"old": 4, "gone": 4}, False)


def test_inspect_and_diff_have_them(killed: str) -> None:
    tables = Tables(StoreView(OsDisk(), killed))
    side = Side.open(killed, {}, lambda: NOW_MS)

    for topics, groups in (
        (tables.topics().topics, tables.groups().groups),
        (side.config.topics, side.config.groups),
    ):
        assert (queues_of(topics), "g" in groups) == ({"new": 1, "old": 9}, True)
    assert tables.problems == []


def test_they_count_for_an_older_backup_as_well(killed: str) -> None:
    tables_at(Path(killed))[0].close()
    path = Path(killed, "config/topics.json")
    path.write_bytes(path.read_bytes()[:-9])

    tables = Tables(StoreView(OsDisk(), killed))
    ours = open_cold(StoreLocation(killed, killed, "broker-a"), now_ms=NOW_MS, recovery="pocketmq")

    for topics in (tables.topics().topics, ours.topics):
        assert queues_of(topics) == {"new": 1, "old": 9}
