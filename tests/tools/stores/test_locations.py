"""Paths, patterns and URLs of stores, and the names of their brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.stores.locations import StoreLocation, broker_name_of, is_store, locate

from ...recorded import recorded_store


def make_store(folder: Path, topics: str | None = None) -> Path:
    (folder / "commitlog").mkdir(parents=True)
    if topics is not None:
        (folder / "config").mkdir()
        (folder / "config/topics.json").write_text(topics)
    return folder


def member(*names: str) -> str:
    topics = ",".join(f'"rmq_sys_SYNC_BROKER_MEMBER_{name}":{{}}' for name in names)
    return f'{{"topicConfigTable":{{{topics}}}}}'


def test_a_recorded_store_tells_its_brokers_name(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "anything")

    assert locate([str(store)]) == [StoreLocation(str(store), str(store), "broker-a")]


def test_a_pattern_finds_the_stores_of_many_brokers(tmp_path: Path) -> None:
    for name in ("broker-b", "broker-a", "broker-c"):
        make_store(tmp_path / name / "store", member(name))
    (tmp_path / "broker-x" / "store").mkdir(parents=True)

    found = locate([str(tmp_path / "broker-*" / "store")])

    assert [one.broker_name for one in found] == ["broker-a", "broker-b", "broker-c"]
    assert found[0].root == str(tmp_path / "broker-a/store")


def test_a_store_that_is_named_twice_is_found_once(tmp_path: Path) -> None:
    store = make_store(tmp_path / "one")

    assert len(locate([str(store), str(tmp_path / "*"), f"file://{store}"])) == 1


def test_a_folder_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    odd = make_store(tmp_path / "[s]")

    assert [one.root for one in locate([str(odd)])] == [str(odd)]


@pytest.mark.parametrize(
    ("topics", "backup", "mapping", "given", "name"),
    [
        (member("b1"), member("b2"), None, {}, "b1"),
        ('{"topicConfigTable":{"rmq_sys', member("b2"), None, {}, "b2"),
        (member("b1", "b2"), None, None, {}, "folder"),
        (member("b1", "b2"), None, '{"topicQueueMappingInfoMap":{"T":{"bname":"b3"}}}', {}, "b3"),
        ("{}", None, None, {"brokerName": "b4"}, "b4"),
        (None, None, None, {}, "folder"),
    ],
)
def test_the_first_rule_that_tells_names_the_broker(
    topics: str | None,
    backup: str | None,
    mapping: str | None,
    given: dict[str, str],
    name: str,
    tmp_path: Path,
) -> None:
    store = tmp_path / "folder" / "store"
    (store / "config").mkdir(parents=True)
    for file, text in (
        ("topics.json", topics),
        ("topics.json.bak", backup),
        ("topicQueueMapping.json", mapping),
    ):
        if text is not None:
            (store / "config" / file).write_text(text)

    assert broker_name_of(OsDisk(), str(store), given) == name


def test_a_folder_where_a_table_should_be_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine" / "config" / "topics.json").mkdir(parents=True)

    assert broker_name_of(OsDisk(), str(tmp_path / "mine")) == "mine"


def test_a_given_name_wins(tmp_path: Path) -> None:
    store = make_store(tmp_path / "one", member("b1"))

    assert locate([str(store)], broker_name="mine")[0].broker_name == "mine"


def test_one_name_is_not_given_to_two_stores(tmp_path: Path) -> None:
    make_store(tmp_path / "one")
    make_store(tmp_path / "two")

    with pytest.raises(ConfigError, match="names one broker, and 2 stores"):
        locate([str(tmp_path / "*")], broker_name="mine")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("nowhere", "no such folder:"),
        ("nothing-*", "no store matches"),
        ("", "is not a store"),
        ("nosuch://x/y", "cannot be opened"),
        ("file:///tmp/%c", "cannot be opened"),
        ("file:///tmp/%c3", "cannot be opened"),
        ("gs://%c3/x", "cannot be opened"),
        ("s3://bucket-*/y", "not in its name"),
    ],
)
def test_what_is_no_store_is_refused(given: str, why: str, tmp_path: Path) -> None:
    text = given if "://" in given else str(tmp_path / given)

    with pytest.raises(ConfigError, match=why):
        locate([text])


@pytest.mark.parametrize("mark", ["commitlog/", "batchconsumequeue/", "config/topics.json.bak"])
def test_what_a_broker_leaves_makes_a_folder_a_store(mark: str, tmp_path: Path) -> None:
    path = tmp_path / mark
    (path if mark.endswith("/") else path.parent).mkdir(parents=True)
    if not mark.endswith("/"):
        path.write_text("{}")

    assert is_store(OsDisk(), str(tmp_path))


def test_a_folder_config_or_a_file_checkpoint_alone_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/app.yaml").write_text("a: 1")
    (tmp_path / "checkpoint").write_text("model weights")

    assert not is_store(OsDisk(), str(tmp_path))
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    assert is_store(OsDisk(), str(tmp_path))
