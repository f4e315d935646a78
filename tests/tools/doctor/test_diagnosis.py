"""A diagnosis, held against what Apache's own classes made of the recorded stores."""

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from pocketmq.proto.clock import SystemClock
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.doctor.diagnosis import Diagnosis, diagnose
from pocketmq.tools.doctor.evidence import MessageState
from pocketmq.tools.doctor.losses import Reason

from ...damage import damage
from ...recorded import by_size, expected, recorded_names, recorded_store, settings
from ...stores import fingerprint

NAMES = recorded_names()
#: Store: how many messages Apache loses, by reason (the fixtures' own table).
LOST_BY_APACHE: dict[str, dict[str, int]] = {
    "damaged-flip-last": {"damaged": 1, "cut": 49},
    "damaged-flip-recent": {"damaged": 1, "cut": 417},
    "damaged-missing-last-queue-file": {"no entry": 60},
    "damaged-missing-middle-log": {"missing": 121},
    "damaged-missing-queue-file": {"no entry": 100},
    "damaged-no-queues": {"no entry": 1752},
    "damaged-no-queues-unclean": {"no entry": 117},
    "damaged-torn-tail": {"missing": 1},
    "damaged-torn-tail-clean": {"missing": 1},
    "damaged-zeroed-tail": {"missing": 5},
}
LOST_BY_US: dict[str, dict[str, int]] = {
    "damaged-flip-last": {"damaged": 1},
    "damaged-flip-middle-clean": {"damaged": 1},
    "damaged-flip-recent": {"damaged": 1},
    "damaged-flip-recent-clean": {"damaged": 1},
    "damaged-missing-middle-log": {"missing": 121},
    "damaged-odd-log-file": {"missing": 1},
    "damaged-torn-tail": {"missing": 1},
    "damaged-torn-tail-clean": {"missing": 1},
    "damaged-zeroed-tail": {"missing": 5},
}
HEALTHY = {
    *(name for name in NAMES if not name.startswith(("damaged-", "unclean"))),
    "damaged-empty-last-log-file",
    "damaged-no-side-files",
}


def of(store: Path, given: dict[str, str], *, crash: bool = False) -> Diagnosis:
    chosen = settings_of(OsDisk(), str(store), given)
    return diagnose(str(store), chosen, SystemClock().now_ms(), crash=crash)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that `_forget` deletes: a diagnosis reads its store, also files that were closed meanwhile."""
    return tempfile.TemporaryDirectory(prefix="pocketmq-diagnosed-")


@functools.cache
def diagnosed(name: str) -> Diagnosis:
    return of(recorded_store(name, Path(_folder().name) / name), settings(name))


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Close and delete the files of what was diagnosed."""
    yield
    diagnosed.cache_clear()
    _folder().cleanup()
    _folder.cache_clear()


def lost(found: Diagnosis, whose: str) -> dict[str, int]:
    losses = (found.apache if whose == "apache" else found.ours).losses
    if losses is None:
        return {}
    return {str(reason): len(rows) for reason, rows in losses.by_reason.items() if len(rows)}


@pytest.mark.long
@pytest.mark.parametrize("name", by_size(NAMES))
def test_apaches_losses_are_those_that_its_broker_had(name: str) -> None:
    wanted, found = expected(name), diagnosed(name).apache

    assert (found.outcome.refusal is None) == wanted["accepted"]
    assert lost(diagnosed(name), "apache") == LOST_BY_APACHE.get(name, {})
    if found.losses is None or found.changes is None or found.keys is None:
        return
    assert found.outcome.log_end == wanted["maxPhyOffset"]
    assert found.outcome.log_begin == wanted["minPhyOffset"]
    entries = {(q["topic"], q["queueId"]): len(q["entries"]) for q in wanted["queues"]}
    assert {n: len(e) for n, e in found.outcome.entries.items() if len(e)} == {
        n: count for n, count in entries.items() if count
    }
    served = [record for record in wanted["records"] if not record["crcOk"]]
    assert len(found.losses.served_damaged) == len(served)
    revived = [record for record in wanted["records"] if "ownPhysicalOffset" in record]
    assert found.changes.revived_records == len(revived)
    unfound = sum(not lookup["offsets"] for lookup in wanted["lookups"])
    assert found.keys.checked - found.keys.found == unfound


@pytest.mark.parametrize("name", by_size(NAMES))
def test_ours_loses_only_what_is_damaged_or_gone(name: str) -> None:
    assert lost(diagnosed(name), "ours") == LOST_BY_US.get(name, {})
    keys = diagnosed(name).ours.keys
    assert keys is None or keys.found == keys.checked


@pytest.mark.parametrize("name", by_size(NAMES))
def test_a_store_is_healthy_if_nothing_is_lost_or_rebuilt(name: str) -> None:
    assert diagnosed(name).is_healthy == (name in HEALTHY)


def test_the_diagnosis_is_plain_json_of_a_bounded_size() -> None:
    document = diagnosed("damaged-no-queues").to_json()

    text = json.dumps(document)

    assert len(text) < 20_000
    assert document["apache"]["lost"]["messages"] == 1752
    [reason] = document["apache"]["lost"]["reasons"]
    assert sum(queue["messages"] for queue in reason["queues"]) == 1752
    assert all(sample["stored_ms"] for sample in reason["samples"])


def test_messages_that_are_cut_are_said_to_lie_behind_the_damage() -> None:
    losses = diagnosed("damaged-flip-recent").apache.losses

    assert losses is not None
    reasons = {one["reason"]: one for one in losses.to_json()["reasons"]}
    assert reasons["cut"]["why"] == (
        "after 1,345,896, where the broker ends the log (the body does not fit its CRC)"
    )
    assert losses.by_reason[Reason.CUT].log_offset.min() > 1_345_896


def test_a_crash_now_costs_a_clean_store_rebuilding_alone(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")

    found = of(store, {}, crash=True)

    assert not found.is_healthy
    assert found.is_safe
    assert not lost(found, "apache")
    assert found.apache.changes is not None
    names = [f"index/{path.name}" for path in (store / "index").iterdir()]
    assert found.apache.changes.deleted_index_files == names
    assert found.power_cut.messages == 0
    assert found.abort_present is False


@pytest.mark.long
def test_a_crash_of_a_damaged_store_costs_apache_what_follows_the_damage(tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-recent-clean", tmp_path / "store")

    found = of(store, settings("damaged-flip-recent-clean"), crash=True)

    assert lost(found, "apache") == LOST_BY_APACHE["damaged-flip-recent"]
    assert lost(found, "ours") == LOST_BY_US["damaged-flip-recent"]


@pytest.mark.long
def test_a_power_cut_takes_what_was_stored_behind_the_last_flush(tmp_path: Path) -> None:
    store = recorded_store("unclean", tmp_path / "store")

    found = of(store, settings("unclean"), crash=True)

    messages, flushed_ms = found.evidence.messages, found.power_cut.flushed_ms
    assert flushed_ms is not None
    assert found.power_cut.messages == int((messages.store_ms > flushed_ms).sum()) > 0
    (store / "checkpoint").unlink()
    assert of(store, settings("unclean")).power_cut.messages is None


def test_an_empty_folder_is_healthy(tmp_path: Path) -> None:
    assert of(tmp_path, {}).is_healthy
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_a_file_is_a_refusal(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    (store / "checkpoint").unlink()
    (store / "checkpoint").mkdir()

    found = of(store, {})

    assert found.apache.outcome.refusal
    assert found.ours.outcome.refusal


@pytest.mark.long
@hypothesis_settings(max_examples=15)
@given(
    name=st.sampled_from(["rolled", "unclean-late", "consumption", "encodings", "delays"]),
    seed=st.integers(0, 1 << 32),
    crash=st.booleans(),
)
def test_random_damage_ends_in_a_diagnosis_and_changes_nothing(
    name: str, seed: int, crash: bool
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        store = recorded_store(name, home / "store")
        damage(store, random.Random(seed))
        before = fingerprint(store)

        found = of(store, settings(name), crash=crash)

        assert fingerprint(store) == before
        json.dumps(found.to_json())
        if found.apache.losses is not None and found.ours.losses is not None:
            assert (
                found.ours.losses.messages
                <= found.apache.losses.messages + found.evidence.count(MessageState.DAMAGED)
            )
    finally:
        shutil.rmtree(home)
