"""Method tables and call contexts, without any carrier."""

from __future__ import annotations

import logging

import pytest

from pocketmq.proto.carriers import check_grpc
from pocketmq.proto.errors import ConfigError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import LATER, Call, Later, MethodKind, bidi, service, unary
from pocketmq.proto.rpc.errors import BadRequest

from ..fake_calls import FakeCall


def list_topics(request: pb.TopicListRequest, call: Call) -> pb.TopicListReply | Later:
    return LATER


def test_a_service_names_its_methods_by_path() -> None:
    table = service(
        "pocketmq.v1.NameServer",
        {"ListTopics": unary(pb.TopicListRequest, pb.TopicListReply, list_topics)},
    )

    method = table["/pocketmq.v1.NameServer/ListTopics"]
    assert method.kind is MethodKind.UNARY
    assert [each.path for each in table] == ["/pocketmq.v1.NameServer/ListTopics"]


def test_tables_join_but_do_not_overwrite_each_other() -> None:
    entries = {"ListTopics": unary(pb.TopicListRequest, pb.TopicListReply, list_topics)}
    one, other = service("a.A", entries), service("a.B", entries)

    assert len(one | other) == 2
    with pytest.raises(AssertionError, match=r"a\.A/ListTopics"):
        _ = one | one


def test_bytes_that_do_not_decode_name_method_and_type() -> None:
    entry = bidi(pb.ProduceRun, pb.ProduceReply, lambda stream: pytest.fail("not called"))
    method = service("pocketmq.v1.Broker", {"Produce": entry})["/pocketmq.v1.Broker/Produce"]

    with pytest.raises(BadRequest) as raised:
        method.decode(b"\xff\xff\xff")

    assert "/pocketmq.v1.Broker/Produce" in raised.value.message
    assert raised.value.details["field"] == "pocketmq.v1.ProduceRun"


def test_cancellation_is_told_once_to_each() -> None:
    call, told = FakeCall(), list[str]()
    call.on_cancel(lambda: told.append("before"))

    call.cancel()
    call.cancel()
    call.on_cancel(lambda: told.append("after"))

    assert told == ["before", "after"]
    assert call.cancelled


def test_one_failing_callback_does_not_silence_the_next(caplog: pytest.LogCaptureFixture) -> None:
    call, told = FakeCall(), list[str]()

    def buggy() -> None:
        raise ZeroDivisionError

    call.on_cancel(buggy)
    call.on_cancel(lambda: told.append("second"))

    with caplog.at_level(logging.ERROR):
        call.cancel()

    assert told == ["second"]
    assert "cancellation callback failed" in caplog.text


def test_a_carrier_that_is_not_installed_is_refused_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"broker\.grpc is 'grpcio'.*\[grpcio\]'"):
        check_grpc("broker", "grpcio")
    check_grpc("broker", "builtin")
