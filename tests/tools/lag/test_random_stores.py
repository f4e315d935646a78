"""Random stores: the report against a recount that remembers every message; and stores that are damaged anywhere."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from pocketmq.proto.errors import StoreMismatch
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.inspect.document import describe_apache
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.lag.rows import LagRow, LagVerdict
from pocketmq.tools.stores import RecoveryName
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation

from ...recorded import recorded_store
from ...runs import Hand, make_run, open_store
from .oracle import recount
from .test_cold import counted, invented, write_offsets

pytestmark = pytest.mark.long

NOW_MS = 1_800_000_000_000
QUEUES = (("T1", 0), ("T1", 3), ("%RETRY%G", 0), ("T2", 1))


#: Store time and record size of every message, by queue, in order.
Messages = dict[tuple[str, int], list[tuple[int, int]]]


def row_of(messages: list[tuple[int, int]], offset: int) -> dict[str, int | None]:
    """Return what is to be said of a group that committed OFFSET in a queue of MESSAGES."""
    unread = messages[offset:]
    return {
        "committed_offset": offset,
        "min_offset": 0,
        "max_offset": len(messages),
        "lag": max(0, len(messages) - offset),
        "lag_bytes": sum(size for _, size in unread),
        "oldest_unread_age_ms": NOW_MS - unread[0][0] if unread else None,
    }


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pocketmq-lag-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write(root: Path, steps: list[tuple[int, int, int]], *, clean: bool) -> Messages:
    """Write a store into ROOT, a run of messages a step, and return what is in it."""
    found: Messages = {}
    clock = Hand()
    store = open_store(root, now_ms=clock)
    for number, count, size in steps:
        clock.now_ms += size
        place = QUEUES[number]
        run = make_run(*place, [bytes([65]) * (size + at) for at in range(count)])
        store.append(run)
        sizes = run.columns.sizes.tolist()
        found.setdefault(place, []).extend((clock.now_ms, one) for one in sizes)
    if clean:
        store.close()
    else:
        store.flush()
    return found


def rows_of(root: Path, recovery: RecoveryName = "apache") -> list[LagRow]:
    location = StoreLocation(str(root), str(root), "b")
    given = {"mappedFileSizeCommitLog": "4096", "mappedFileSizeConsumeQueue": "400"}
    sizes = {"maxHashSlotNum": "50", "maxIndexNum": "200"}
    store = open_cold(location, now_ms=NOW_MS, given=given | sizes, recovery=recovery)
    return store_rows(store, NOW_MS)


steps = st.lists(
    st.tuples(st.integers(0, len(QUEUES) - 1), st.integers(1, 9), st.integers(1, 300)), max_size=25
)


@given(
    steps=steps,
    offsets=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.sampled_from("ABC"))),
    clean=st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
def test_the_report_is_what_a_recount_finds(
    recovery: RecoveryName,
    steps: list[tuple[int, int, int]],
    offsets: list[tuple[int, int, str]],
    clean: bool,
) -> None:
    with folder() as root:
        messages = write(root, steps, clean=clean)
        table: dict[str, dict[str, int]] = {}
        for number, offset, group in offsets:
            topic, queue = QUEUES[number]
            table.setdefault(f"{topic}@{group}", {})[str(queue)] = offset
        write_offsets(root, table)

        rows = rows_of(root, recovery)

    wanted = {
        (topic, queue, group): row_of(messages[topic, queue], table[f"{topic}@{group}"][str(queue)])
        for topic, queue in messages
        for group in "ABC"
        if str(queue) in table.get(f"{topic}@{group}", {})
    }
    found = counted(rows)
    assert {key: row for key, row in found.items() if key[:2] in messages} == wanted
    gone = [
        row
        for row in rows
        if row.key[1:3] not in messages and row.facts.committed_offset is not None
    ]
    assert all(row.verdict is LagVerdict.QUEUE_MISSING for row in gone)


def damage(store: Path, chance: random.Random) -> None:
    """Do something bad to one file of STORE."""
    folders = ("commitlog", "consumequeue", "commitlog", "consumequeue", "config", "")
    files = [
        path
        for path in sorted((store / chance.choice(folders)).rglob("*"))
        if path.is_file() and "index" not in path.parts and path.stat().st_size
    ]
    path = chance.choice(files)
    size = path.stat().st_size
    kind = chance.choice(("flip", "zero", "cut", "remove", "garbage", "flip"))
    if kind == "remove":
        path.unlink()
        return
    at = chance.randrange(size)
    with path.open("r+b") as file:
        if kind == "cut" and "config" in path.parts:
            file.truncate(at)
            return
        file.seek(at)
        old = file.read(chance.choice((1, 30, 3_000)))
        file.seek(at)
        new = {
            "flip": bytes([old[0] ^ 1 << chance.randrange(8)]) + old[1:],
            "garbage": chance.randbytes(len(old)),
        }
        file.write(new.get(kind, bytes(len(old))))


@pytest.mark.parametrize("seed", range(24))
def test_a_store_that_is_damaged_anywhere_is_told_as_apache_would_have_it(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    store = recorded_store(chance.choice(("rolled", "unclean-late", "cleaned")), tmp_path / "store")
    root = str(store)
    whole = describe_apache(root, {}, settings_of(OsDisk(), root, {}), NOW_MS, lookups=False)
    write_offsets(store, invented(whole))
    if chance.random() < 0.5:
        (store / "abort").touch()
    for _ in range(chance.randrange(1, 4)):
        damage(store, chance)

    document = describe_apache(root, {}, settings_of(OsDisk(), root, {}), NOW_MS, lookups=False)

    location = StoreLocation(root, root, "b")
    if not document["accepted"]:
        with pytest.raises(StoreMismatch):
            open_cold(location, now_ms=NOW_MS, index=False)
        return
    opened = open_cold(location, now_ms=NOW_MS, index=False)
    assert counted(store_rows(opened, NOW_MS)) == recount(document, NOW_MS)
