"""`inspect STORE tables`: what the journal of tables says, whole and damaged."""

import random
from pathlib import Path

from pocketmq.store.format.table_frames import TableVersion

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
