"""The description of a store, held against what Apache's own classes found in the recorded ones."""

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.tools.inspect.document import describe_apache, describe_ours, host_text

from ..recorded import by_size, expected, recorded_names, recorded_store, settings
from ..stores import comparable, differences, fingerprint

NAMES = recorded_names()


def apache(store: Path, given: dict[str, str]) -> dict[str, Any]:
    return describe_apache(str(store), given, ApacheSettings.of(given), SystemClock().now_ms())


def ours(store: Path, given: dict[str, str]) -> dict[str, Any]:
    return describe_ours(str(store), given, ApacheSettings.of(given), SystemClock().now_ms())


@pytest.mark.parametrize("name", by_size(NAMES))
def test_apaches_recovery_is_predicted_exactly(name: str, tmp_path: Path) -> None:
    wanted = comparable(expected(name))

    found = comparable(apache(recorded_store(name, tmp_path / "store"), settings(name)))

    assert differences(wanted, found) == []
    assert list(found) == list(wanted)


@functools.cache
def recovered(name: str) -> dict[str, Any]:
    """Return what our recovery makes of the recorded store NAME; not to be changed."""
    with tempfile.TemporaryDirectory() as folder:
        return ours(recorded_store(name, Path(folder) / "store"), settings(name))


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    recovered.cache_clear()


@pytest.mark.parametrize("name", by_size(n for n in NAMES if n != "damaged-odd-log-file"))
def test_our_recovery_keeps_what_apache_keeps(name: str) -> None:
    wanted = expected(name)

    found = recovered(name)

    assert found["accepted"]
    kept = {record["physicalOffset"]: record for record in found["records"]}
    for record in wanted.get("records", ()):
        if "ownPhysicalOffset" in record:
            assert record["physicalOffset"] not in kept  # a stale record that came back to life
        else:
            assert kept[record["physicalOffset"]] == record
    lost = {record["physicalOffset"] for record in found["records"] if not record["crcOk"]}
    _require_entries(wanted, found, lost)


def _require_entries(wanted: dict[str, Any], found: dict[str, Any], lost: set[int]) -> None:
    """Every readable entry that Apache has is there, but those of damaged records."""
    there = {(q["topic"], q["queueId"]): {tuple(e) for e in q["entries"]} for q in found["queues"]}
    for queue in wanted.get("queues", ()):
        entries = {
            tuple(entry)
            for entry in queue["entries"]
            if entry[0] not in queue["unreachable"] and entry[1] not in lost
        }
        assert entries <= there.get((queue["topic"], queue["queueId"]), set())


@pytest.mark.parametrize(
    ("name", "records", "entries"),
    [
        ("damaged-flip-recent", 2999, 3000),  # Apache keeps 2,582 of 3,000
        ("damaged-flip-last", 2999, 3000),  # Apache keeps 2,950
        ("damaged-no-queues", 3000, 3000),  # Apache makes 1,248 entries again
        ("damaged-no-queues-unclean", 1416, 1416),  # 1,299
        ("damaged-missing-queue-file", 3000, 3000),  # 2,900
        ("damaged-missing-last-queue-file", 3000, 3000),  # 2,940
        ("damaged-stale-tail", 3000, 3000),  # Apache revives three
    ],
)
def test_our_recovery_keeps_more(name: str, records: int, entries: int) -> None:
    found = recovered(name)

    assert sum(record["crcOk"] for record in found["records"]) == records
    assert sum(len(queue["entries"]) for queue in found["queues"]) == entries
    assert found["recovery"]["findings"]


@pytest.mark.parametrize("name", ["damaged-no-checkpoint", "damaged-garbage-index", "unclean"])
def test_our_recovery_finds_every_key(name: str) -> None:
    found = recovered(name)

    assert all(lookup["offsets"] for lookup in found["lookups"])


@pytest.mark.parametrize("describe", [apache, ours])
@pytest.mark.parametrize(
    "name", ["damaged-flip-recent", "unclean", "delays", "damaged-short-index"]
)
def test_not_a_byte_of_the_store_changes(name: str, describe: Any, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    before = fingerprint(store)

    describe(store, settings(name))

    assert fingerprint(store) == before


def test_a_store_without_write_permission_is_described(tmp_path: Path) -> None:
    store = recorded_store("unclean", tmp_path / "store")
    for path in [store, *store.rglob("*")]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)

    assert apache(store, settings("unclean"))["accepted"]
    assert ours(store, settings("unclean"))["accepted"]

    for path in [store, *store.rglob("*")]:
        os.chmod(path, 0o755)


def test_a_refusal_of_ours_names_the_file(tmp_path: Path) -> None:
    store = recorded_store("damaged-odd-log-file", tmp_path / "store")
    os.truncate(store / "commitlog" / "00000000000001507328", 65_537)

    found = ours(store, settings("damaged-odd-log-file"))

    assert not found["accepted"]
    assert "00000000000001507328 is 65,537 bytes long" in found["refusal"]


def test_hosts_are_written_as_java_does() -> None:
    from pocketmq.proto.record import Host

    assert host_text(Host.parse("127.0.0.1", 10911)) == "127.0.0.1:10911"
    assert host_text(Host.parse("::1", 9)) == "0:0:0:0:0:0:0:1:9"
    assert host_text(Host.parse("fd00::2:a", 9)) == "fd00:0:0:0:0:0:2:a:9"
