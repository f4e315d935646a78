"""The reflection service without a wire: questions on a stream, and what each is answered."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from pocketmq.proto.gen import (
    grpc_reflection_pb2 as v1,
    grpc_reflection_v1alpha_pb2 as v1alpha,
    rocketmq_v2_pb2 as v2,
)
from pocketmq.proto.rpc import service, unary
from pocketmq.proto.services.reflection_service import INVALID_ARGUMENT, NOT_FOUND, Reflection

from ...fake_calls import FakeStream

VERSIONS = pytest.mark.parametrize("pb", [v1, v1alpha], ids=["v1", "v1alpha"])
OWN = service(
    "apache.rocketmq.v2.MessagingService",
    {
        "SendMessage": unary(
            v2.SendMessageRequest, v2.SendMessageResponse, lambda *_: pytest.fail("not called")
        )
    },
)


def answers(pb: Any, *questions: dict[str, Any]) -> list[Any]:
    """Ask QUESTIONS on one stream."""
    path = f"/{pb.DESCRIPTOR.package}.ServerReflection/ServerReflectionInfo"
    stream = FakeStream()
    receiver = Reflection(OWN).methods()[path].handler(stream)
    for question in questions:
        receiver.on_message(pb.ServerReflectionRequest(**question))
    receiver.on_end()
    receiver.on_close()
    assert stream.is_over
    assert stream.error is None
    return stream.sent


@VERSIONS
def test_the_services_are_listed_with_the_two_that_tell_of_them(pb: Any) -> None:
    (reply,) = answers(pb, {"list_services": "*", "host": "a.example"})

    assert [each.name for each in reply.list_services_response.service] == [
        "apache.rocketmq.v2.MessagingService",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    assert reply.valid_host == "a.example"
    assert reply.original_request.list_services == "*"


@VERSIONS
@pytest.mark.parametrize(
    "question",
    [
        {"file_by_filename": v2.DESCRIPTOR.name},
        {"file_containing_symbol": "apache.rocketmq.v2.MessagingService"},
        {"file_containing_symbol": "apache.rocketmq.v2.MessagingService.SendMessage"},
    ],
    ids=str,
)
def test_a_file_comes_with_all_that_it_imports_itself_first(
    pb: Any, question: dict[str, Any]
) -> None:
    (reply,) = answers(pb, question)

    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in reply.file_descriptor_response.file_descriptor_proto
    ]
    assert files[0].name == v2.DESCRIPTOR.name
    assert files[0].SerializeToString() == v2.DESCRIPTOR.serialized_pb
    assert {file.name for file in files[1:]} == set(files[0].dependency)


@VERSIONS
def test_the_service_describes_itself(pb: Any) -> None:
    name = f"{pb.DESCRIPTOR.package}.ServerReflection"

    (reply,) = answers(pb, {"file_containing_symbol": name})

    assert list(reply.file_descriptor_response.file_descriptor_proto) == [
        pb.DESCRIPTOR.serialized_pb
    ]


@VERSIONS
@pytest.mark.parametrize(
    ("question", "code", "names"),
    [
        ({"file_by_filename": "nothing.proto"}, NOT_FOUND, "'nothing.proto'"),
        ({"file_containing_symbol": "a.Nothing"}, NOT_FOUND, "'a.Nothing'"),
        ({"file_containing_symbol": ""}, NOT_FOUND, "''"),
        ({"all_extension_numbers_of_type": "a.Nothing"}, NOT_FOUND, "'a.Nothing'"),
        (
            {"all_extension_numbers_of_type": "apache.rocketmq.v2.MessagingService"},
            NOT_FOUND,
            "MessagingService",
        ),
        (
            {
                "file_containing_extension": {
                    "containing_type": "apache.rocketmq.v2.Message",
                    "extension_number": 7,
                }
            },
            NOT_FOUND,
            "extension 7 of 'apache.rocketmq.v2.Message'",
        ),
        ({"host": "a.example"}, INVALID_ARGUMENT, "message_request"),
        ({}, INVALID_ARGUMENT, "message_request"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_an_error_and_the_stream_goes_on(
    pb: Any, question: dict[str, Any], code: int, names: str
) -> None:
    refused, answered = answers(pb, question, {"list_services": ""})

    assert refused.WhichOneof("message_response") == "error_response"
    assert refused.error_response.error_code == code
    assert names in refused.error_response.error_message
    assert refused.original_request == pb.ServerReflectionRequest(**question)
    assert answered.WhichOneof("message_response") == "list_services_response"


def test_a_message_without_extensions_has_no_numbers() -> None:
    (reply,) = answers(v1, {"all_extension_numbers_of_type": "apache.rocketmq.v2.Message"})

    assert reply.WhichOneof("message_response") == "all_extension_numbers_response"
    assert reply.all_extension_numbers_response.base_type_name == "apache.rocketmq.v2.Message"
    assert list(reply.all_extension_numbers_response.extension_number) == []


def test_an_error_repeats_no_more_than_the_beginning_of_a_question() -> None:
    (reply,) = answers(v1, {"file_containing_symbol": "a" * 1_000_000})

    assert len(reply.error_response.error_message) < 300
