"""The tables of the config files, held against what Apache's broker wrote and read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketmq.store.format.java_json import parse
from pocketmq.store.format.state_tables import (
    COUNTER_MAX,
    DataVersion,
    TopicConfig,
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_groups,
    parse_topics,
    render_consumer_offsets,
    render_delay_offsets,
    render_groups,
    render_topics,
)

from ..recorded import expected, recorded_store

TABLES: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "topics.json": (parse_topics, render_topics),
    "subscriptionGroup.json": (parse_groups, render_groups),
    "consumerOffset.json": (parse_consumer_offsets, render_consumer_offsets),
    "delayOffset.json": (parse_delay_offsets, render_delay_offsets),
}


@pytest.mark.parametrize("name", ["basic", "consumption", "delays", "encodings", "transactions"])
@pytest.mark.parametrize("file", TABLES)
def test_a_table_of_5_5_0_renders_to_its_bytes(file: str, name: str, tmp_path: Path) -> None:
    parse_table, render_table = TABLES[file]
    text = (recorded_store(name, tmp_path / "store") / "config" / file).read_text("utf-8")

    rendered = render_table(parse_table(text))

    if file != "consumerOffset.json":  # its groupTopicMap stands in the order of Java's hash tables
        assert rendered == text
    assert sorted(rendered.splitlines()) == sorted(text.splitlines()) or parse(rendered)
    assert _unordered(parse(rendered)) == _unordered(parse(text))


def _unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unordered(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(str(item) for item in value)
    return value


@pytest.mark.parametrize("name", ["consumption", "transactions"])
def test_topics_and_groups_are_what_apache_reads(name: str, tmp_path: Path) -> None:
    config = recorded_store(name, tmp_path / "store") / "config"
    wanted = expected(name)["config"]

    topics = parse_topics((config / "topics.json").read_text("utf-8"))
    groups = parse_groups((config / "subscriptionGroup.json").read_text("utf-8"))

    assert {t.name: t.to_json() for t in topics.topics.values()} == wanted["topics"]
    assert {g.name: g.to_json() for g in groups.groups.values()} == wanted["subscriptionGroups"]
    assert topics.version.to_json() == wanted["topicsDataVersion"]


def test_the_layout_of_older_brokers_is_read() -> None:
    text = '{\n\t"offsetTable":{\n\t\t"%RETRY%G@G":{0:7\n\t\t},"T@G":{"0":250,1:251\n\t\t}\n\t}\n}'

    table = parse_consumer_offsets(text)

    assert table.offsets == {"%RETRY%G@G": {0: 7}, "T@G": {0: 250, 1: 251}}
    assert table.version == DataVersion()


def test_missing_fields_have_apaches_defaults() -> None:
    table = parse_topics('{"topicConfigTable":{"T":{"topicName":"T","attributes":null}}}')

    assert table.topics["T"] == TopicConfig(name="T", read_queues=16, write_queues=16)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        '{"topicConfigTable":[]}',
    ],
)
def test_a_file_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"topicConfigTable|the file"):
        parse_topics(text)


@pytest.mark.parametrize(
    ("bean", "reason"),
    [
        ("7", "T is int"),
        ('{"perm":"six"}', "perm is 'six'"),
        ('{"order":1}', "order is 1"),
        ('{"attributes":[]}', "attributes is list"),
    ],
)
def test_an_entry_that_cannot_be_read_harms_no_other(bean: str, reason: str) -> None:
    table = parse_topics(f'{{"topicConfigTable":{{"T":{bean},"U":{{}}}}}}')

    assert list(table.topics) == ["U"]
    assert reason in table.unread["T"].reason
    assert table.unread["T"].bean == parse(bean)


def test_a_topic_has_the_name_of_its_key() -> None:
    table = parse_topics('{"topicConfigTable":{"T":{"topicName":"U"},"U":{"topicName":7}}}')

    assert [topic.name for topic in table.topics.values()] == ["T", "U"]


def test_offsets_that_cannot_be_read_harm_no_other() -> None:
    text = '{"offsetTable":{"T@a":{0:"x"},"T@b":{0:1},"T@c":{2147483648:0},"T@d":[],"T@e":{-1:0}}}'

    table = parse_consumer_offsets(text)

    assert table.offsets == {"T@b": {0: 1}}
    assert set(table.unread) == {"T@a", "T@c", "T@d", "T@e"}


def test_counters_stay_in_31_bits() -> None:
    assert DataVersion(COUNTER_MAX, 0, 5).next(9) == DataVersion(0, 0, 9)


def test_topics_of_a_group_with_two_at_signs_are_not_listed() -> None:
    table = parse_consumer_offsets('{"offsetTable":{"T@G@broadcast":{0:1},"T@G":{0:2}}}')

    assert parse(render_consumer_offsets(table))["groupTopicMap"] == {"G": ["T"]}  # type: ignore[index,call-overload]
