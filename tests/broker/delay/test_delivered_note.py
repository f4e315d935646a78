"""The note of what was delivered: found again after a kill, and believed only where it can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker import broker_tables
from pocketmq.broker.broker_tables import BrokerTables
from pocketmq.broker.delay.progress import DeliveredNote, SlotNote
from pocketmq.proto.clock import VirtualClock
from pocketmq.store.message_store import MessageStore

from ...runs import make_run, open_store

#: When the clock of these stores stands.
NOW = 1_700_000_000_000
NEAR, NEXT = NOW + 5_000, NOW + 6_000


#: The machine's clock.
CLOCK = VirtualClock(NOW)


def tables_of(store: MessageStore) -> BrokerTables:
    tables = BrokerTables.open(store, CLOCK)
    tables.journal.start(lambda function: function())
    return tables


def written(store: MessageStore) -> DeliveredNote:
    note = DeliveredNote(store, tables_of(store).delivered)
    note.write_levels({1: 7, 3: 9})
    note.write_slots([(NEAR, SlotNote(104, 5_300, 52)), (NEXT, SlotNote(156, 6_001, 0))])
    return note


def killed(store: MessageStore) -> None:
    """Let go of the files of STORE as a kill does."""
    store._close_files()


def found(store: MessageStore, *, has_replicas: bool = False) -> DeliveredNote:
    note = DeliveredNote(store, tables_of(store).delivered, has_replicas=has_replicas)
    note.find()
    return note


def test_after_a_kill_everything_is_found_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))
    written(store)
    killed(store)

    store = open_store(tmp_path)
    note = found(store)

    assert note.levels == {1: 7, 3: 9}
    assert note.of_slot(NEAR) == SlotNote(104, 5_300, 52)
    assert note.of_slot(NEXT) == SlotNote(156, 6_001, 0)
    assert note.of_slot(NEXT + 1_000) is None
    killed(store)


def test_what_the_last_process_noted_stays_noted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    killed(store)
    store = open_store(tmp_path)
    found(store).write_slots([(NEXT, SlotNote(208, 6_500, 104))])
    killed(store)

    store = open_store(tmp_path)
    note = found(store)

    assert note.levels == {1: 7, 3: 9}
    assert note.of_slot(NEAR) == SlotNote(104, 5_300, 52)
    assert note.of_slot(NEXT) == SlotNote(208, 6_500, 104)
    killed(store)


def test_slots_that_are_over_are_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    note = written(store)
    store.timers.delivered_up_to(NEXT)

    note.write_slots([])

    assert note.of_slot(NEAR) is None
    assert note.of_slot(NEXT) is not None
    assert note.read_ms == NEXT
    store.close()


def test_after_a_restart_of_the_machine_nothing_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    written(store)
    killed(store)
    monkeypatch.setattr(broker_tables, "boot_id", lambda disk: b"another boot id.")

    store = open_store(tmp_path)

    assert found(store).levels == {}
    killed(store)


def test_a_log_that_lost_records_ends_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))
    written(store)
    killed(store)
    (log,) = (tmp_path / "commitlog").iterdir()
    log.write_bytes(bytes(log.stat().st_size))

    store = open_store(tmp_path)

    assert found(store).levels == {}
    killed(store)


def test_a_timer_log_that_is_shorter_ends_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    tables = tables_of(store)
    DeliveredNote(store, tables.delivered).write_levels({1: 7})
    tables.delivered.put("progress", "timer log end", store.timers.log.max_offset + 1)
    killed(store)

    store = open_store(tmp_path)

    assert found(store).levels == {}
    killed(store)


def test_with_replicas_nothing_is_believed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    killed(store)

    store = open_store(tmp_path)

    assert found(store, has_replicas=True).levels == {}
    killed(store)


def test_after_a_clean_stop_of_whoever_it_was_nothing_is_believed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    written(store)
    store.close()  # Without `remove`: as another broker would leave it.

    store = open_store(tmp_path)

    assert found(store).levels == {}
    store.close()


def test_a_clean_stop_leaves_no_note(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    note = written(store)

    note.remove()
    killed(store)

    store = open_store(tmp_path)
    assert found(store).levels == {}
    killed(store)


def test_files_of_earlier_versions_are_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    own = tmp_path / "pocketmq"
    own.mkdir(exist_ok=True)
    old = {"accounts.jsonl", "accounts.jsonl.tmp", "delivered", "leases.json", "leases.json.tmp"}
    for name in old:
        (own / name).write_bytes(b"of version 0.2")

    tables_of(store)

    assert old.isdisjoint(path.name for path in own.iterdir())
    store.close()


@pytest.mark.parametrize("others", [[], ["notes"], ["journal-1"]], ids=["alone", "file", "folder"])
def test_the_journal_of_deliveries_of_earlier_versions_is_deleted(
    tmp_path: Path, others: list[str]
) -> None:
    store = open_store(tmp_path)
    pop = tmp_path / "pocketmq" / "pop"
    pop.mkdir(parents=True)
    for name in ("journal-00000007", "journal-00000008", "snapshot-00000007", "snapshot-1.tmp"):
        (pop / name).write_bytes(b"of version 0.2")
    for name in others:
        (pop / name).write_bytes(b"kept") if name == "notes" else (pop / name).mkdir()

    tables_of(store)

    assert sorted(path.name for path in pop.iterdir()) == others if others else not pop.exists()
    store.close()


@pytest.mark.parametrize(
    ("scope", "key", "row"),
    [
        ("levels", "one", 7),
        ("levels", "1", None),
        ("slots", f"{NEAR}", [1, 2]),
        ("slots", f"{NEAR}", 5),
        ("progress", "read ms", [1]),
        ("progress", "timer log end", None),
    ],
)
def test_rows_of_another_shape_do_not_end_a_start(
    tmp_path: Path, scope: str, key: str, row: object
) -> None:
    store = open_store(tmp_path)
    store.append(make_run("T", 0, [b"one"]))
    written(store)
    tables_of(store).delivered.put(scope, key, row)
    killed(store)

    store = open_store(tmp_path)
    note = found(store)

    assert (note.read_ms, note.levels, note.slots) == (0, {}, [])
    store.close()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_start_says_that_the_end_of_the_journal_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    store = open_store(tmp_path)
    tables = tables_of(store)
    tables.journal.close()
    store.close()
    if is_lost:
        path = max((tmp_path / "pocketmq" / "tables").glob("journal-*"))
        path.write_bytes(path.read_bytes()[:80])

    store = open_store(tmp_path)
    tables_of(store).journal.close()
    store.close()

    assert ("tables not closed by the last clean stop" in caplog.text) == is_lost
