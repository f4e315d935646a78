"""A new table costs at most 60 lines: it is durable, replicated, visible in `inspect STORE tables`, and deletable."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker import broker_tables
from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.proto.clock import SystemClock
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.table_files import read_entries
from pocketmq.store.tables import Durability, JsonCodec, NamedTable

from ..runs import open_store
from ..tools.inspect.inspecting import document
from ..waiting import until
from .served_set import ServedMember, served_set

LINES_MAX = 60


class Notes:
    """Notes of administrators about topics, kept in TABLE: the new table as a developer would write it."""

    def __init__(self, table: NamedTable) -> None:
        self._table = table

    def write(self, topic: str, author: str, text: str) -> None:
        """Have the note of AUTHOR about TOPIC be TEXT. Raises StoreError."""
        self._table.put(topic, author, {"text": text})

    def delete(self, topic: str, author: str) -> None:
        """Delete the note of AUTHOR about TOPIC. Raises StoreError."""
        self._table.drop(topic, author)

    def forget_topic(self, topic: str) -> None:
        """Delete all notes about TOPIC. Raises StoreError."""
        self._table.clear(topic)

    def of_topic(self, topic: str) -> dict[str, str]:
        """Return the notes about TOPIC by author."""
        return {author: row["text"] for author, row in self._table.of_scope(topic).items()}


def note_table() -> NamedTable:
    """Return the table that keeps notes."""
    codec, durability = JsonCodec(), Durability.BEFORE_REPLY
    return NamedTable(200, "notes", codec, durability, needs_log=False)


@pytest.fixture(autouse=True)
def added_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_tables, "OTHER_TABLES", [note_table])


def test_a_new_table_costs_at_most_60_lines() -> None:
    lines = sum(len(inspect.getsource(one).splitlines()) for one in (Notes, note_table))
    line_in_other_tables = 1

    assert lines + line_in_other_tables <= LINES_MAX


def test_it_is_durable_visible_and_deletable(tmp_path: Path) -> None:
    notes = opened(tmp_path)
    notes.write("T", "ann", "to be deleted in May")
    notes.write("T", "ben", "of the billing team")
    notes.write("U", "ann", "a test")

    notes = opened(tmp_path)  # The process before was killed.

    assert notes.of_topic("T") == {"ann": "to be deleted in May", "ben": "of the billing team"}
    assert rows_shown(tmp_path) == 3

    notes.delete("T", "ann")
    notes.forget_topic("U")

    assert opened(tmp_path).of_topic("T") == {"ben": "of the billing team"}
    assert opened(tmp_path).of_topic("U") == {}
    assert rows_shown(tmp_path) == 1


def opened(path: Path) -> Notes:
    """Return what a process finds in the store at PATH; it is killed at once."""
    store = open_store(path)
    tables = BrokerTables.open(store, SystemClock())
    store._close_files()
    return Notes(tables.others["notes"])


def rows_shown(store: Path) -> int:
    """Return how many entries `pocketmq inspect STORE tables` shows."""
    (row,) = (row for row in document(store, "tables")["tables"] if row["name"] == "notes")
    found: int = row["entries"]
    return found


@pytest.mark.slow
async def test_followers_have_it_and_a_new_master_goes_on_with_it(tmp_path: Path) -> None:
    async with served_set(tmp_path, 2) as world:
        master = world.served((await world.whole()).id)
        (follower,) = (world.served(one.id) for one in world.up if not one.is_master)
        notes = notes_of(master)
        notes.write("T", "ann", "to be deleted in May")
        notes.write("T", "ben", "of the billing team")
        notes.write("U", "ann", "a test")
        await until(lambda: len(on_disk(follower)) == 3)

        notes.delete("T", "ann")
        notes.forget_topic("U")
        await until(lambda: len(on_disk(follower)) == 1)
        next_master = await world.fail_over()

        assert next_master is follower
        assert notes_of(next_master).of_topic("T") == {"ben": "of the billing team"}
        notes_of(next_master).write("V", "ann", "another test")
        await until(lambda: len(on_disk(master)) == 2)


def notes_of(master: ServedMember) -> Notes:
    running: Any = master.roles.broker._running  # type: ignore[attr-defined]
    return Notes(running.parts.tables.others["notes"])


def on_disk(member: ServedMember) -> list[Any]:
    table = note_table()
    read_entries(OsDisk(), f"{member.path}/pocketmq/tables", [table])
    return list(table.items())
