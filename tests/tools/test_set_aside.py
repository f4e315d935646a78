"""What a broker set aside as damaged while it served, told by the tools that read its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pocketmq.store.scrub_notes import Scrubbed, ScrubNotes
from pocketmq.tools import cli

from ..damage import flip
from ..runs import Hand, make_run, open_store, records_of

BODIES = [b"zero", b"one", b"two"]
UNIQUE = "7F0000012A9F00000000000000000001"


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, str]:
    """A store of which message 1 was set aside, and that message's offset id."""
    store = open_store(tmp_path / "store")
    properties = [{"KEYS": f"k{n}", "UNIQ_KEY": f"{UNIQUE[:-1]}{n}"} for n in range(3)]
    store.append(make_run("T", 0, BODIES, properties))
    record = records_of(store, "T", 0)[1]
    flip(store, record.log_offset)
    store.read_queue("T", 0, 0, 10, 1 << 20)
    store.close()
    return tmp_path / "store", record.message_id


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.run(list(arguments))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("named", ["place", "unique id", "offset id", "key"])
def test_why_tells_of_a_message_that_was_set_aside(
    damaged: tuple[Path, str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, message_id = damaged
    how = {
        "place": ("T/0/1",),
        "unique id": (f"{UNIQUE[:-1]}1",),
        "offset id": (message_id,),
        "key": ("k1", "--topic", "T"),
    }

    code, out = ran(capsys, "trace", *how[named], "--store", str(store), "--json")

    told = json.loads(out)
    assert code == 3
    assert told["state"] == "gone"
    assert "was damaged" in told["conclusion"]
    assert "pocketmq/broken/log-" in told["conclusion"]


def test_inspect_tells_which_message_is_lost(
    damaged: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = ran(capsys, "inspect", str(damaged[0]))

    assert "the message in T/0 at offset 1 is lost, kept in" in " ".join(out.split())


def test_a_look_up_does_not_show_what_is_left_of_it(
    damaged: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, message_id = damaged
    for how in (["--key", "k1"], ["--id", f"{UNIQUE[:-1]}1"], ["--id", message_id]):
        code, out = ran(capsys, "find", "--store", str(store), "--topic", "T", *how)
        assert code == 3, out


def test_verify_shows_when_each_file_was_verified_in_the_background(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Hand()
    store = open_store(tmp_path / "store", now_ms=clock)
    for number in range(60):
        store.append(make_run("T", 0, [b"body %d" % number * 10]))
    files = [file.name for file in store.log.files.files]
    for _ in range(2):
        clock.now_ms += 1_000
        store.scrubber.tick(clock.now_ms)
    store.close()

    code, out = ran(capsys, "inspect", str(tmp_path / "store"), "verify", "--json")
    _, text = ran(capsys, "inspect", str(tmp_path / "store"), "verify")

    first, *others = json.loads(out)["last_verified"]
    assert code == 0
    assert [first["file"], *[one["file"] for one in others]] == files
    assert (first["verified_ms"], first["bytes"], first["damaged"]) == (clock.now_ms, 4096, 0)
    assert {one["verified_ms"] for one in others} == {None}
    assert f"{files[0]}: 4,096 bytes verified in the background at 2023-11-14" in text
    assert f"{files[1]}: not verified yet" in text
    assert ScrubNotes.load(store.disk, str(tmp_path / "store/pocketmq")).files == {
        files[0]: Scrubbed(clock.now_ms, 4096, 0)
    }
