"""The crash matrix on a part of its states; `python -m tests.crash.crash_matrix` tries them all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from .crash_matrix import SESSIONS, CrashState, Wanted, check, check_store, enumerate_states
from .crash_session import Known, Ledger, Stored
from .crash_states import KILLED, POWER_CUTS, State, WatchedDisk, is_kill, make


@pytest.mark.slow
@pytest.mark.parametrize("session", SESSIONS)
def test_every_rule_holds_in_some_states(
    session: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    try_states(session, tmp_path, caplog, first=24, step=131, serve=16)


@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("session", SESSIONS)
def test_every_rule_holds_in_two_thousand_states(
    session: str, part: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    try_states(session, tmp_path, caplog, first=8 * part, step=48, serve=24)


def try_states(
    session: str,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    step: int,
    serve: int,
    first: int = 0,
) -> None:
    caplog.set_level(logging.CRITICAL)
    tried = 0

    def look(state: CrashState, folder: Path, known: Known) -> None:
        nonlocal tried
        tried += 1
        try:
            check(state, folder, known, serve=tried % serve == 0)
        except Exception as error:
            error.add_note(f"python -m tests.crash.crash_matrix {state}")
            raise

    count = enumerate_states(session, 1, look, wants=Wanted(step, first), folder=folder)
    assert count > 4_000, "the session got shorter"
    assert tried >= count // step


# --- that it can fail


@pytest.mark.slow
def test_a_broken_rule_ends_the_search_and_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    seen: list[CrashState] = []

    def look(state: CrashState, folder: Path, known: Known) -> None:
        seen.append(state)
        raise AssertionError(f"broken in {state}")

    with pytest.raises(AssertionError, match="broken in sync-1 "):
        enumerate_states("sync", 1, look, wants=Wanted(500, 900), folder=tmp_path)
    assert len(seen) == 1


def known_of(*stored: Stored) -> Known:
    ledger = Ledger(sent=[one.body for one in stored], stored=list(stored))
    return ledger.known(1_700_000_000_000)


def test_a_lost_message_is_noticed(tmp_path: Path) -> None:
    lost = Stored("orders", 0, 0, b"1 ", on_device=True)
    with pytest.raises(AssertionError, match="lost: "):
        check_store(CrashState("async", 1, 0, KILLED), tmp_path / "store", known_of(lost))


def test_a_message_in_memory_may_be_lost_by_a_power_cut_only(tmp_path: Path) -> None:
    lost = Stored("orders", 0, 0, b"1 ", on_device=False)
    check_store(CrashState("async", 1, 0, "synced"), tmp_path / "one", known_of(lost))
    with pytest.raises(AssertionError, match="lost: "):
        check_store(CrashState("async", 1, 0, KILLED), tmp_path / "two", known_of(lost))


def test_a_state_is_named() -> None:
    state = CrashState("no-index", 3, 212, "killed at 512")
    assert CrashState.parse(str(state)) == state
    assert is_kill(state.way)
    assert not any(map(is_kill, POWER_CUTS))


# --- the ways


def states_of(folder: Path) -> dict[str, State]:
    """Return the states in the middle of the second write to a new file, after an older one was synced."""
    found: dict[str, State] = {}

    def watch() -> None:
        if disk.operations == 6:
            found.update({way: disk.state(way) for way in disk.ways([5])})

    disk = WatchedDisk(str(folder), watch, lambda: 0)
    old = disk.open_map(str(folder / "old"), size=1_024, create=True)  # Operation 1.
    old.write(0, b"a" * 1_024)
    old.sync()
    disk.sync_folder(str(folder))
    new = disk.open_map(str(folder / "new"), size=2_048, create=True)
    new.write(0, b"b" * 1_024)  # Operation 6.
    assert found
    return found


def test_the_ways_differ_in_what_survives(tmp_path: Path) -> None:
    home = tmp_path / "store"
    home.mkdir()
    found = states_of(home)
    assert set(found) == {KILLED, "killed at 1", "killed at 512", *POWER_CUTS, "any 5"}

    def left(way: str) -> dict[str, bytes]:
        folder = tmp_path / way
        make(found[way], str(folder))
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    old = b"a" * 1_024
    assert left("synced") == {"old": old}
    assert left("data") == {"old": old}
    assert left("names") == {"old": old, "new": b""}
    assert left("sizes") == {"old": old, "new": bytes(2_048)}
    assert left(KILLED) == {"old": old, "new": bytes(2_048)}
    assert left("killed at 1") == {"old": old, "new": b"b" + bytes(2_047)}
    assert left("killed at 512") == {"old": old, "new": b"b" * 512 + bytes(1_536)}
