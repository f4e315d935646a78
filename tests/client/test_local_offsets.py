"""Offsets in a file: Apache's text to the byte, both layouts read, one whole file at every moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Queue
from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.consuming.local_offsets import (
    LocalOffsets,
    load,
    offsets_path,
    parse,
    render,
    save,
)
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import CorruptState, OffsetStoreFailed

ODD = Queue('%RETRY%a"ü', "broker-a", 1)
PLAIN = Queue("T", "broker-a", 0)
OFFSETS = {ODD: 7, PLAIN: 12}

#: As RocketMQ 5.5.0's client writes them (fastjson2 2.0.59).
BY_FASTJSON_2 = """{
→"offsetTable":{
→→{
→→→"brokerName":"broker-a",
→→→"queueId":1,
→→→"topic":"%RETRY%a\\"ü"
→→}:7,
→→{
→→→"brokerName":"broker-a",
→→→"queueId":0,
→→→"topic":"T"
→→}:12
→}
}""".replace("→", "\t")
#: As older ones do (fastjson 1.2.83).
BY_FASTJSON_1 = """{
→"offsetTable":{{
→→→"brokerName":"broker-a",
→→→"queueId":1,
→→→"topic":"%RETRY%a\\"ü"
→→}:7,{
→→→"brokerName":"broker-a",
→→→"queueId":0,
→→→"topic":"T"
→→}:12
→}
}""".replace("→", "\t")

queues = st.builds(Queue, st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**31 - 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return offsets_path(str(tmp_path), "10.0.0.1@DEFAULT", "billing")


def offsets_at(path: Path) -> LocalOffsets:
    async def find() -> Path:
        return path

    return LocalOffsets(find, VirtualClock())


def test_the_text_is_that_of_apaches_client() -> None:
    assert render(OFFSETS) == BY_FASTJSON_2
    assert render({}) == '{\n\t"offsetTable":{}\n}'


@pytest.mark.parametrize(
    "text",
    [
        BY_FASTJSON_1,
        BY_FASTJSON_2,
        BY_FASTJSON_2.replace("\n", "").replace("\t", ""),
        BY_FASTJSON_2.replace('"offsetTable"', '"version":{"a":[1]},"offsetTable"'),
    ],
    ids=["fastjson 1", "fastjson 2", "compact", "with more"],
)
def test_every_layout_is_read(text: str) -> None:
    assert parse(text) == OFFSETS


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_what_is_written_is_read(offsets: dict[Queue, int]) -> None:
    assert parse(render(offsets)) == offsets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"offsetTable":',
        '{"offsetTable":{',
        '{"offsetTable":{}}x',
        '{"offsetTable":{"T":1}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b"}:1}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":"0"}:1}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:"1"}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:true}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}1}}',
        '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:1;}}',
        '{"offsetTable":[]}',
    ],
)
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@given(st.integers(0, len(BY_FASTJSON_2) - 1))
def test_a_torn_text_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(BY_FASTJSON_2[:length])


def test_the_file_lies_where_apaches_lies(path: Path, tmp_path: Path) -> None:
    assert path == tmp_path / "10.0.0.1@DEFAULT" / "billing" / "offsets.json"
    at_home = Path.home() / ".rocketmq_offsets" / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    assert offsets_path("", "10.0.0.1@DEFAULT", "g") == at_home
    assert offsets_path("/x", "a/../b", "g") == Path("/x/a_.._b/g/offsets.json")


def test_the_file_before_becomes_the_backup(path: Path) -> None:
    assert load(path) == {}
    save(path, {PLAIN: 1})
    save(path, {PLAIN: 2})

    assert parse(path.read_text()) == {PLAIN: 2}
    assert parse(path.with_name("offsets.json.bak").read_text()) == {PLAIN: 1}
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]


def test_what_others_wrote_stays(path: Path) -> None:
    save(path, {ODD: 7})
    save(path, {PLAIN: 12})

    assert load(path) == OFFSETS


@pytest.mark.parametrize("broken", ["", "{", "\xff"])
def test_a_broken_file_gives_way_to_its_backup(path: Path, broken: str) -> None:
    save(path, {PLAIN: 1})
    save(path, {PLAIN: 2})
    path.write_bytes(broken.encode("latin-1"))

    assert load(path) == {PLAIN: 1}
    save(path, {PLAIN: 3})
    assert load(path) == {PLAIN: 3}
    assert parse(path.with_name("offsets.json.bak").read_text()) == {PLAIN: 1}


def test_two_broken_files_are_said_so(path: Path) -> None:
    save(path, {PLAIN: 1})
    save(path, {PLAIN: 2})
    path.write_text("{")
    path.with_name("offsets.json.bak").write_text("[")

    with pytest.raises(CorruptState, match=r"offsets\.json does not parse .*\.bak does not parse"):
        load(path)
    with pytest.raises(CorruptState):
        save(path, {PLAIN: 3})
    assert path.read_text() == "{"


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OffsetStoreFailed, match="offsets_folder"):
        save(tmp_path / "file" / "g" / "offsets.json", {PLAIN: 1})


async def test_only_what_is_new_is_written(path: Path) -> None:
    offsets = offsets_at(path)
    assert await offsets.committed_of([PLAIN]) == {PLAIN: -1}

    await offsets.commit({PLAIN: 5})
    written = load(path)
    save(path, {PLAIN: 1})
    await offsets.commit({PLAIN: 5})
    assert (written, load(path)) == ({PLAIN: 5}, {PLAIN: 1})
    assert offsets.committed(PLAIN) == 5
    offsets.forget(PLAIN)
    assert offsets.committed(PLAIN) is None
    offsets.begin(HeldQueue(PLAIN, 0, 9))
    assert offsets.committed(PLAIN) == 9
    await offsets.commit({PLAIN: 10})
    assert await offsets_at(path).committed_of([PLAIN, ODD]) == {PLAIN: 10, ODD: -1}
