"""Options for reading."""

from typing import Any

import pytest

from pocketmq.client.name_server_addresses import NAMESERVER_VARIABLE
from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError
from pocketmq.tools.spark.live.read_options import Choice, ReadOptions, read_options, schema_options


def options(streaming: bool = False, /, **given: str) -> ReadOptions:
    return read_options({"subscribe": "orders", **given}, streaming=streaming)


def refusal(streaming: bool = False, /, **given: str) -> str:
    with pytest.raises(ConfigError) as raised:
        options(streaming, **given)
    return raised.value.message


def test_a_topic_is_all_that_has_to_be_said() -> None:
    batch, stream = options(), options(True)

    assert batch.place.addresses == ("127.0.0.1:9876",)
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert stream.starting.kind == "latest"
    assert batch.fail_on_data_loss
    assert batch.filter is None
    assert not batch.commits


def test_names_are_matched_in_any_case() -> None:
    found = options(FAILONDATALOSS="False", maxoffsetspertrigger="7")

    assert not found.fail_on_data_loss
    assert found.offsets_max == 7


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    assert "startingOffset is not known" in refusal(startingOffset="earliest")
    assert "did you mean startingOffsets?" in refusal(startingOffset="earliest")


def test_spark_may_add_options_of_its_own() -> None:
    assert options(checkpointLocation="/tmp/x").choice.topics == ("orders",)


@pytest.mark.parametrize("name", ["rocketmq.secretKey", "rocketmq.accessKey", "password"])
def test_the_value_of_a_secret_is_in_no_error(name: str) -> None:
    said = refusal(False, **{name: "hunter2"})

    assert name in said
    assert "POCKETMQ_SECRET_FILE" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"subscribe": "b, a,b"}, Choice(topics=("a", "b"))),
        ({"topic": "a"}, Choice(topics=("a",))),
        ({"subscribePattern": "or.*"}, Choice(pattern="or.*")),
        ({"assign": '{"T": {"a": [1]}}'}, Choice(queues=(Queue("T", "a", 1),))),
    ],
    ids=["list", "alias", "pattern", "assign"],
)
def test_what_is_read_is_said_in_one_of_four_ways(given: dict[str, str], choice: Choice) -> None:
    assert read_options(given, streaming=False).choice == choice


def test_a_pattern_matches_whole_names() -> None:
    choice = Choice(pattern="or.*|b")

    assert choice.matches("orders")
    assert not choice.matches("reorders")
    assert not choice.matches("bc")


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "topic": "a"}], ids=["none", "two"])
def test_exactly_one_of_them_is_needed(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        read_options(given, streaming=False)


def test_time_goes_before_times_and_these_before_offsets() -> None:
    offsets = '{"orders": {"a": {"0": 5}}}'
    every = {
        "startingOffsets": offsets,
        "startingTimestamp": "9",
        "startingOffsetsByTimestamp": offsets,
    }

    assert options(startingOffsets=offsets).starting.kind == "offsets"
    assert (
        options(startingOffsets=offsets, startingOffsetsByTimestamp=offsets).starting.kind
        == "times"
    )
    assert options(False, **every).starting.time_ms == 9
    assert options(endingOffsets=offsets, endingTimestamp="8").ending.time_ms == 8


def test_what_is_too_young_is_an_error_at_the_start_unless_asked_for_and_never_at_the_end() -> None:
    assert not options(startingTimestamp="9").starting.latest_if_none
    assert options(
        startingTimestamp="9", startingOffsetsByTimestampStrategy="latest"
    ).starting.latest_if_none
    assert options(endingTimestamp="9").ending.latest_if_none


def test_a_group_of_a_stream_is_committed_for_unless_told_otherwise() -> None:
    assert options(True, consumerGroup="g").commits
    assert options(True, group="g").group == "g"
    assert not options(True, group="g", commitOffsets="false").commits
    assert not options(False, group="g").commits


def test_filters_are_checked_where_they_are_written() -> None:
    tags, sql = options(subExpression="a || b"), options(filterType="sql92", subExpression="x > 1")

    assert tags.filter is not None
    assert sql.filter is not None
    assert tags.filter.expression == "a || b"
    assert sql.filter.expression == "x > 1"
    assert options(subExpression="*").filter is None


@pytest.mark.parametrize(
    ("streaming", "given", "words"),
    [
        (False, {"startingOffsets": "latest"}, ("startingOffsets", "batch")),
        (False, {"startingOffsets": '{"orders": {"a": {"0": -1}}}'}, ("startingOffsets", "-1")),
        (False, {"startingOffsets": "soon"}, ("startingOffsets", "JSON")),
        (False, {"startingOffsets": "group"}, ("startingOffsets", "consumerGroup")),
        (False, {"endingOffsets": "earliest"}, ("endingOffsets",)),
        (False, {"endingOffsets": '{"orders": {"a": {"0": -2}}}'}, ("endingOffsets", "-2")),
        (True, {"endingOffsets": "latest"}, ("endingOffsets", "stream")),
        (True, {"endingTimestamp": "1"}, ("endingTimestamp", "stream")),
        (False, {"startingTimestamp": "-1"}, ("startingTimestamp", "'-1'")),
        (False, {"maxOffsetsPerTrigger": "0"}, ("maxOffsetsPerTrigger", "from 1 on")),
        (False, {"maxOffsetsPerTrigger": "many"}, ("maxOffsetsPerTrigger", "'many'")),
        (True, {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, ("minOffsets", "5")),
        (False, {"maxTriggerDelay": "later"}, ("maxTriggerDelay", "15m")),
        (False, {"failOnDataLoss": "maybe"}, ("failOnDataLoss", "true or false")),
        (False, {"commitOffsets": "true", "group": "g"}, ("commitOffsets", "batch")),
        (True, {"commitOffsets": "true"}, ("commitOffsets", "consumerGroup")),
        (True, {"consumerGroup": "g", "group": "h"}, ("consumerGroup", "group")),
        (True, {"consumerGroup": "g\0h"}, ("consumerGroup", "a store cannot have it")),
        (False, {"subscribe": "a\0b"}, ("subscribe", "a store cannot have it")),
        (False, {"subscribe": "", "subscribePattern": "("}, ("subscribePattern", "regular")),
        (False, {"filterType": "SQL92"}, ("filterType", "subExpression")),
        (False, {"filterType": "SQL92", "subExpression": "x >"}, ("subExpression",)),
        (False, {"filterType": "XPATH"}, ("filterType", "TAG")),
        (False, {"schemaStyle": "pulsar"}, ("schemaStyle", "kafka")),
        (False, {"includeHeaders": "true"}, ("includeHeaders", "kafka")),
        (False, {"nameServer": "here"}, ("nameServer", "host:port")),
        (False, {"endpoints": "a:0"}, ("endpoints", "host:port")),
        (False, {"nameServer": "a:1", "endpoints": "b:1"}, ("nameServer", "endpoints")),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(
    streaming: bool, given: dict[str, str], words: tuple[str, ...]
) -> None:
    said = refusal(streaming, **given)

    for word in words:
        assert word in said


def test_addresses_are_separated_as_in_rocketmq() -> None:
    assert options(nameServer="a:1;b:2").place.addresses == ("a:1", "b:2")
    assert options(endpoints="a:1").place.are_brokers


def test_the_environment_names_the_name_servers_where_no_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NAMESERVER_VARIABLE, "a:1,b:2")

    assert options().place.addresses == ("a:1", "b:2")
    assert options(nameServer="c:3").place.addresses == ("c:3",)
    assert options(endpoints="d:4").place.addresses == ("d:4",)
    monkeypatch.setenv(NAMESERVER_VARIABLE, "nowhere")
    assert "$POCKETMQ_NAMESERVER: 'nowhere' is no host:port" in refusal()


def test_the_schema_needs_its_own_options_alone() -> None:
    anything: dict[str, Any] = {"SCHEMASTYLE": "Kafka", "includeHeaders": "true", "x": "y"}

    assert schema_options(anything) == ("kafka", True)
    assert schema_options({}) == ("rocketmq", False)
