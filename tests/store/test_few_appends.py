"""Runs of a few records leave the bytes in log, queues and index that the way of many records leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import StoreFull
from pocketmq.proto.record import encode_run
from pocketmq.proto.run import Run, check_run
from pocketmq.store.log_writer import Appended
from pocketmq.store.message_store import MessageStore

from ..fakes import FaultyDisk
from ..runs import BORN, Hand, open_store, records_of

PAIRS = st.tuples(
    st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "x"]),
    st.sampled_from(["", "a", "b c", " a  b ", "ü", "😀 k", "2", "long" * 150]),
)
STRINGS = st.one_of(
    st.lists(PAIRS, max_size=5).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    ),
    st.sampled_from([b"KEYS\x01\xff\xfe\x02", b"TAGS\x01open", b"TAGS", b"\x02\x02KEYS\x01k\x02"]),
)
MESSAGES = st.lists(st.tuples(st.binary(min_size=1, max_size=30), STRINGS), min_size=1, max_size=5)
TURNS = st.lists(
    st.tuples(
        st.integers(0, 5_000),
        st.lists(
            st.tuples(st.sampled_from(["T", "U"]), st.integers(0, 1), MESSAGES),
            min_size=1,
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=12,
)


def made(topic: str, queue: int, messages: list[tuple[bytes, bytes]], *, few: bool) -> Run:
    data, sizes = encode_run(topic, queue, messages, born_timestamp_ms=5, born_host=BORN)
    run = check_run(data, sizes, topic, queue)
    assert run.is_small or run.scanned is not None
    return run if few else Run(topic=topic, queue=queue, records=data, columns=run.columns)


def bodies(store: MessageStore, topic: str, queue: int) -> list[bytes]:
    return [record.body for record in records_of(store, topic, queue)]


def files_of(folder: Path) -> dict[str, Any]:
    """Return what each file holds; the order of queues in a document says nothing."""
    return {
        str(path.relative_to(folder)): _read(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "abort")
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()


@pytest.mark.long
@given(turns=TURNS)
def test_both_ways_leave_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    turns: list[tuple[int, list[tuple[str, int, list[tuple[bytes, bytes]]]]]],
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    now = Hand()
    stores: list[MessageStore] = [
        open_store(folder / name, now_ms=now, index_entries=20, index_slots=7)
        for name in ("few", "many")
    ]

    for step_ms, runs in turns:
        now.now_ms += step_ms
        found = [
            store.append_many([made(*run, few=few) for run in runs])
            for store, few in zip(stores, (True, False), strict=True)
        ]
        assert [repr(one) for one in found[0]] == [repr(one) for one in found[1]]
    for store in stores:
        store.close()

    assert files_of(folder / "few") == files_of(folder / "many")


def test_what_the_queues_could_not_take_is_derived_before_anything_else(
    tmp_path: Path, few_runs: list[Run]
) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    store.append_many([few_runs[0]])
    disk.run_full("consumequeue/U")

    outcomes = store.append_many(few_runs[1:])

    assert [type(outcome) for outcome in outcomes] == [Appended] * len(few_runs[1:])
    assert bodies(store, "T", 0) == [b"one", b"two"], "what follows in the log waits, too"
    (refused,) = store.append_many([made("T", 0, [(b"refused", b"")], few=True)])
    assert isinstance(refused, StoreFull)
    disk.heal()
    store.append_many([made("T", 0, [(b"after", b"")], few=True)])
    assert bodies(store, "T", 0) == [b"one", b"two", b"four", b"after"]
    assert bodies(store, "U", 0) == [b"three"]
    store.close()


@pytest.fixture
def few_runs() -> list[Run]:
    runs = [("T", b"one"), ("T", b"two"), ("U", b"three"), ("T", b"four")]
    return [made(topic, 0, [(body, b"")], few=True) for topic, body in runs]
