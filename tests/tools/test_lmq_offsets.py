"""A store whose offsets of groups are in lmqConsumerOffset.json alone looks the same to every tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pocketmq.client import Admin
from pocketmq.store.format.state_tables import parse_consumer_offsets
from pocketmq.store.offsets_file import LMQ_OFFSETS_FILE, OFFSETS_FILE, OffsetsFile
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.cli import cli
from pocketmq.tools.follow.stopped_store import StoppedStore
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.spark.jobs import offset_files
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation
from pocketmq.tools.trace.sources import ProgressTables

from .. import served
from ..recorded import recorded_store, settings

NAME = "consumption"
NOW_MS = 1_795_300_000_000


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return recorded_store(NAME, tmp_path / "plain")


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """The same store, whose offsets are in the file of a broker with enableLmq."""
    store = recorded_store(NAME, tmp_path / "light")
    for suffix in ("", ".bak"):
        file = store / "config" / f"{OFFSETS_FILE}{suffix}"
        file.rename(store / "config" / f"{LMQ_OFFSETS_FILE}{suffix}")
    return store


def test_lag_is_the_same(plain: Path, light: Path) -> None:
    def rows(store: Path) -> dict[tuple[str, int, str], int | None]:
        location = StoreLocation(str(store), str(store), "broker-a")
        cold = open_cold(location, now_ms=NOW_MS, given=settings(NAME))
        return {row.key[1:]: row.facts.committed_offset for row in store_rows(cold, NOW_MS)}

    assert rows(light) == rows(plain)
    assert set(rows(light).values()) - {None}


def test_diff_finds_nothing(plain: Path, light: Path) -> None:
    options = [
        word for item in settings(NAME).items() for word in ("--broker-conf", "=".join(item))
    ]
    done = CliRunner().invoke(cli, ["diff", str(plain), str(light), *options])
    assert done.exit_code == 0, done.output


def test_inspect_shows_the_same_offsets(plain: Path, light: Path) -> None:
    texts = [
        CliRunner().invoke(cli, ["inspect", str(store), "offsets", "--json"]).output
        for store in (plain, light)
    ]
    assert texts[0] == texts[1]
    assert "committed_offset" in texts[0]


def test_why_knows_where_groups_stand(plain: Path, light: Path) -> None:
    def readings(store: Path) -> dict[tuple[str, int], set[tuple[str, int]]]:
        notes: list[str] = []
        found = ProgressTables(OsDisk(), str(store), notes).readings()
        assert not notes
        return {name: {(one.group, one.committed) for one in rows} for name, rows in found.items()}

    assert readings(light) == readings(plain) != {}


def test_spark_reads_the_same_offsets(plain: Path, light: Path) -> None:
    (batch,), (same,) = (
        offset_files.rows_of_store(StoreLocation(str(store), str(store), "broker-a"))
        for store in (plain, light)
    )
    assert batch.num_rows > 3
    assert batch == same


def test_promoting_takes_the_offsets_of_the_stopped_broker(light: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (light / "abort").unlink(missing_ok=True)

    StoppedStore(OsDisk(), str(light), 1 << 30).copy_tables(str(target))

    before, after = (
        OffsetsFile(OsDisk(), str(store)).load(parse_consumer_offsets).value
        for store in (light, target)
    )
    assert before == after != None  # noqa: E711


@pytest.mark.long
@pytest.mark.processes
def test_a_broker_goes_on_where_groups_stood_and_writes_both_files(light: Path) -> None:
    before = OffsetsFile(OsDisk(), str(light)).load(parse_consumer_offsets).value
    assert before is not None
    checked = 0
    with served.ServerProcess(light) as server, Admin(server.nameserver) as admin:
        for key, queues in before.offsets.items():
            topic, _, group = key.partition("@")
            if group in {one.name for one in admin.groups()}:
                found = [
                    one for one in admin.describe_group(group).queues if one.queue.topic == topic
                ]
                assert {one.queue.number: one.offset for one in found} == queues
                checked += 1
        assert checked > 3

    for name in (OFFSETS_FILE, LMQ_OFFSETS_FILE):
        text = (light / "config" / name).read_text()
        assert parse_consumer_offsets(text).offsets.items() >= before.offsets.items()
