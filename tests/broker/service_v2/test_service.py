"""Whatever goes wrong in a call of `apache.rocketmq.v2` is a status in its reply."""

import re
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker import service_v2
from pocketmq.broker.service_v2.service import SERVICE, ServiceV2, service, unary
from pocketmq.broker.service_v2.statuses import OK, Refused, code_of
from pocketmq.proto.errors import (
    CorruptRecord,
    InvalidArgument,
    InvalidFilter,
    PocketMQError,
    TopicNotFound,
)
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER, MethodTable
from tests.fake_calls import FakeCall


class Heartbeats:
    """Serves heartbeats by what it was given to do."""

    def __init__(self, outcome: Any, *, anonymous: bool = False) -> None:
        self._outcome = outcome
        self._anonymous = anonymous

    def methods(self) -> MethodTable:
        return service(
            {
                "Heartbeat": unary(
                    v2.HeartbeatRequest,
                    v2.HeartbeatResponse,
                    self._beat,
                    anonymous=self._anonymous,
                )
            }
        )

    def _beat(self, *_: object) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def answer(face: Heartbeats, **metadata: str) -> Any:
    method = ServiceV2([face]).methods()[f"/{SERVICE}/Heartbeat"]
    return method.handler(v2.HeartbeatRequest(), FakeCall(metadata=metadata))


NAMED = {"x-mq-client-id": "me"}


def test_an_error_is_a_status_with_its_sentence() -> None:
    reply = answer(Heartbeats(TopicNotFound("no topic T")), **NAMED)

    assert reply.status == v2.Status(code=v2.TOPIC_NOT_FOUND, message="no topic T")


def test_a_fault_of_ours_tells_nothing_of_the_inside() -> None:
    reply = answer(Heartbeats(KeyError("secret")), **NAMED)

    assert reply.status.code == v2.INTERNAL_SERVER_ERROR
    assert "secret" not in reply.status.message


@pytest.mark.parametrize("name", ["", " "])
def test_a_call_names_its_client(name: str) -> None:
    metadata = {"x-mq-client-id": name} if name else {}

    assert answer(Heartbeats(None), **metadata).status.code == v2.CLIENT_ID_REQUIRED


def test_some_calls_need_no_name() -> None:
    reply = v2.HeartbeatResponse(status=OK)

    assert answer(Heartbeats(reply, anonymous=True)) is reply


def test_a_call_may_be_answered_later() -> None:
    assert answer(Heartbeats(LATER), **NAMED) is LATER


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(v2.ILLEGAL_MESSAGE_TAG, "tag"), v2.ILLEGAL_MESSAGE_TAG),
        (InvalidFilter("filter"), v2.ILLEGAL_FILTER_EXPRESSION),
        (InvalidArgument("argument"), v2.BAD_REQUEST),
        (CorruptRecord("record"), v2.INTERNAL_SERVER_ERROR),
        (PocketMQError("error"), v2.INTERNAL_SERVER_ERROR),
    ],
)
def test_the_code_is_that_of_the_nearest_class(error: PocketMQError, code: v2.Code) -> None:
    assert code_of(error) == code


def test_the_map_of_the_folder_names_every_file_and_every_method() -> None:
    drawn = set(re.findall(r"\w+", service_v2.__doc__ or ""))
    files = {file.stem for file in Path(str(service_v2.__file__)).parent.glob("[!_]*.py")}
    methods = {method.name for method in v2.DESCRIPTOR.services_by_name["MessagingService"].methods}

    assert files | methods <= drawn
