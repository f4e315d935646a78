"""Repaired copies: sound to both brokers, every sound message kept, the source as it was."""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings as hypothesis_settings, strategies as st

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, InvalidArgument, PocketMQError
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.cli import run as command
from pocketmq.tools.doctor.diagnosis import Diagnosis, diagnose
from pocketmq.tools.doctor.evidence import MessageState
from pocketmq.tools.repair import repair
from pocketmq.tools.repaired_copy import Repaired, make_repaired_copy

from ...damage import damage
from ...recorded import recorded_names, recorded_store, settings
from ...stores import fingerprint

NAMES = recorded_names()


def repaired(store: Path, target: Path, given: dict[str, str]) -> Repaired:
    return make_repaired_copy(str(store), str(target), given, SystemClock().now_ms)


def of(store: Path, given: dict[str, str]) -> Diagnosis:
    chosen = settings_of(OsDisk(), str(store), given)
    return diagnose(str(store), chosen, SystemClock().now_ms(), crash=False)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_repaired_copy_is_healthy_and_the_source_untouched(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    before = fingerprint(store)

    made = repaired(store, tmp_path / "copy", settings(name))

    assert fingerprint(store) == before
    assert not (tmp_path / "copy" / "abort").exists()
    found = of(tmp_path / "copy", settings(name))
    gone = made.evidence.count(MessageState.MISSING) if name == "damaged-missing-middle-log" else 0
    assert found.is_healthy == (not gone)
    assert found.evidence.count(MessageState.MISSING) == gone
    assert found.evidence.count(MessageState.SOUND) == made.evidence.count(MessageState.SOUND)
    assert found.ours.outcome.recovery is not None
    assert found.ours.outcome.recovery.scanned_records == 0 or gone


def test_files_that_did_not_change_are_linked_and_the_last_of_each_row_copied(
    tmp_path: Path,
) -> None:
    store = recorded_store("damaged-flip-recent", tmp_path / "store")

    repaired(store, tmp_path / "copy", {})

    def is_linked(name: str) -> bool:
        return os.path.samefile(store / name, tmp_path / "copy" / name)

    assert is_linked("commitlog/00000000000000000000")
    assert not is_linked("commitlog/00000000000001310720")  # a record in it was taken out
    assert not is_linked("commitlog/00000000000001507328")
    assert is_linked("consumequeue/Fill1/1/00000000000000000000")
    last = max(path.name for path in (store / "consumequeue/Fill1/1").iterdir())
    assert not is_linked(f"consumequeue/Fill1/1/{last}")
    assert not is_linked("checkpoint")
    assert not is_linked("config/topics.json")


def test_what_cannot_be_read_is_set_aside_in_the_copy(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    (store / "config/subscriptionGroup.json").write_text("{")
    (store / "config/subscriptionGroup.json.bak").write_text("[")
    (store / "commitlog/notes.txt").write_text("mine")
    shutil.rmtree(store / "index")
    (store / "index").write_text("a file")
    (store / "checkpoint").unlink()
    (store / "checkpoint").mkdir()
    (store / "checkpoint/note").write_text("?")

    made = repaired(store, tmp_path / "copy", settings("rolled"))

    text = "\n".join(made.fitted.sentences)
    assert "config/subscriptionGroup.json: neither it nor its backup can be read" in text
    assert "commitlog/notes.txt: its name is not an offset" in text
    aside = {path.name for path in (tmp_path / "copy/pocketmq/broken").iterdir()}
    assert {"commitlog-notes.txt.1", "index.1", "checkpoint.1"} <= aside
    assert of(tmp_path / "copy", settings("rolled")).is_healthy
    assert (store / "commitlog/notes.txt").read_text() == "mine"


def test_what_is_there_already_is_not_overwritten(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("kept")

    for target in (tmp_path / "full", store, store / "inside"):
        with pytest.raises(InvalidArgument):
            repaired(store, target, {})

    assert (tmp_path / "full/file").read_text() == "kept"
    assert not (store / "inside").exists()
    (tmp_path / "empty").mkdir()
    repaired(store, tmp_path / "empty", {})
    assert (tmp_path / "empty/commitlog").is_dir()


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()

    with pytest.raises(ConfigError, match="is not a store"):
        repaired(tmp_path / "nothing", tmp_path / "copy", {})

    assert not (tmp_path / "copy").exists()


def test_the_command_says_what_was_repaired_and_lost(tmp_path: Path) -> None:
    store = recorded_store("damaged-odd-log-file", tmp_path / "store")

    result = CliRunner().invoke(repair, [str(store), "--output", str(tmp_path / "copy")])

    assert result.exit_code == 0
    assert "32,768 bytes long: grown with zeros to 65,536" in result.stdout
    assert "lost: 1 missing" in result.stdout
    words = [str(store), "--output", str(tmp_path / "other"), "--json"]
    document = json.loads(CliRunner().invoke(repair, words).stdout)
    assert document["lost"]["messages"] == 1
    assert document["log_end"] == 1_540_062


def test_wrong_arguments_are_exit_code_2(tmp_path: Path) -> None:
    assert command(["repair", str(tmp_path)]) == 2
    assert command(["repair", "/nowhere/at/all", "--output", str(tmp_path / "x")]) == 2
    store = recorded_store("basic", tmp_path / "store")
    assert command(["repair", str(store), "--output", str(store)]) == 2


@pytest.mark.long
@hypothesis_settings(max_examples=15)
@given(
    name=st.sampled_from(["rolled", "unclean-late", "consumption", "encodings", "delays"]),
    seed=st.integers(0, 1 << 32),
)
def test_random_damage_ends_in_a_sound_copy_or_an_error_and_changes_nothing(
    name: str, seed: int
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        store = recorded_store(name, home / "store")
        damage(store, random.Random(seed))
        before = fingerprint(store)

        try:
            made = repaired(store, home / "copy", settings(name))
        except PocketMQError as error:
            assert fingerprint(store) == before
            assert not (home / "copy").exists()
            assert error.message
            return

        assert fingerprint(store) == before
        found = of(home / "copy", settings(name))
        assert found.apache.outcome.refusal is None
        assert found.ours.outcome.refusal is None
        assert found.evidence.count(MessageState.SOUND) >= made.evidence.count(MessageState.SOUND)
        assert found.apache.losses is not None
        assert found.apache.losses.messages == found.evidence.count(MessageState.MISSING)
    finally:
        shutil.rmtree(home)
