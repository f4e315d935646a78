"""`inspect STORE tables`: what the journal of tables says, whole and damaged."""

import random
from pathlib import Path

from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.commit_texts import CommitText, CommitTexts
from pocketmq.broker.consume_stats import ConsumeStats
from pocketmq.proto.clock import VirtualClock
from pocketmq.store.format.table_frames import TableVersion

from ...runs import open_store
from ...store.table_worlds import FakeLog, World
from .inspecting import document, unchanged, view


def store_with_tables(path: Path) -> Path:
    (path / "commitlog").mkdir()
    world = World(path / "pocketmq", FakeLog(random.Random(1)))
    for number in range(300):
        world.topics.put("", f"T{number % 7}", number, version=TableVersion(number, 0, 5))
        world.deliveries.put("queue", f"{number}", number)
        world.turns.run()
    world.turns.run_all()
    world.journal.close()
    return path


def test_tables_are_listed_with_their_entries(tmp_path: Path) -> None:
    found = document(store_with_tables(tmp_path), "tables")

    rows = {row["name"]: row for row in found["tables"]}
    assert found["closed"]
    assert found["gaps"] == []
    assert (rows["topics"]["entries"], rows["topics"]["counter"]) == (7, 299)
    assert rows["deliveries"]["entries"] == 300
    assert rows["deliveries"]["snapshot"] > 0
    assert "deliveries" in view(tmp_path, "tables").stdout


def test_statistics_of_groups_and_texts_of_commits_are_listed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    tables = BrokerTables.open(store, VirtualClock())
    stats, texts = ConsumeStats(table=tables.statistics), CommitTexts(tables.commit_texts)
    for queue in range(3):
        stats.move(("g", "T", queue), "me", 0, 5)
    texts.replace(("g", "T", 0), CommitText(5, "half"))
    texts.write()
    tables.journal.close()
    store.close()

    rows = {row["name"]: row["entries"] for row in document(tmp_path, "tables")["tables"]}

    assert (rows["statistics"], rows["commit_texts"]) == (3, 1)
    shown = view(tmp_path, "tables").stdout
    assert "statistics" in shown
    assert "commit_texts" in shown


def test_damage_is_shown(tmp_path: Path) -> None:
    store = store_with_tables(tmp_path)
    path = max((store / "pocketmq" / "tables").glob("journal-*"))
    data = bytearray(path.read_bytes())
    data[40] ^= 255
    path.write_bytes(data)

    found = document(store, "tables")

    assert [gap["file"] for gap in found["gaps"]] == [path.name]
    assert path.name in view(store, "tables").stdout


def test_a_store_of_apache_has_none() -> None:
    assert not document(unchanged("rolled"), "tables")["present"]
    assert "no journal of tables" in view(unchanged("rolled"), "tables").stdout
