"""Runs of a few records leave the bytes in log, queues and index that the way of many records leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.proto.few_records import as_few
from pocketmq.proto.record_run import encode_run
from pocketmq.proto.run_check import check_run
from pocketmq.store.message_store import MessageStore
from pocketmq.store.run import Run

from ..runs import BORN, Hand, open_store

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
    columns = check_run(data, sizes, topic, queue)
    assert as_few(columns) is not None
    run = Run(topic=topic, queue=queue, records=data, columns=columns)
    return run if few else replace(run, columns=columns.take(slice(None)))


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "abort")
    }


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
