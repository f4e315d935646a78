"""What describes a table: the files that its methods need, found by name and by what they declare."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from pocketmq.proto.gen import pocketmq_v1_pb2 as v1, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import MethodTable, service, unary
from pocketmq.proto.services.described_files import DescribedFiles, with_imports

V1, V2 = v1.DESCRIPTOR.name, v2.DESCRIPTOR.name
Field = descriptor_pb2.FieldDescriptorProto


def table(name: str, request: type[Message], reply: type[Message]) -> MethodTable:
    return service(name, {"Ask": unary(request, reply, lambda *_: pytest.fail("not called"))})


def ours() -> MethodTable:
    return table("pocketmq.v1.Broker", v1.LookupRequest, v1.LookupReply) | table(
        "apache.rocketmq.v2.MessagingService", v2.SendMessageRequest, v2.SendMessageResponse
    )


def extended() -> MethodTable:
    """Return a table whose service stands in a file apart, which extends its message twice."""
    pool = DescriptorPool()
    base = descriptor_pb2.FileDescriptorProto(name="base.proto", package="a", syntax="proto2")
    message = base.message_type.add(name="Open")
    message.extension_range.add(start=100, end=200)
    pool.Add(base)
    more = descriptor_pb2.FileDescriptorProto(
        name="more.proto", package="a", syntax="proto2", dependency=["base.proto"]
    )
    holder = more.message_type.add(name="Holder")
    options = {"label": Field.LABEL_OPTIONAL, "type": Field.TYPE_INT32, "extendee": ".a.Open"}
    more.extension.add(name="later", number=150, **options)
    holder.extension.add(name="inner", number=101, **options)
    more.service.add(name="S").method.add(name="Ask", input_type=".a.Open", output_type=".a.Open")
    pool.Add(more)
    open_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("a.Open"))
    return table("a.S", open_type, open_type)


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("pocketmq.v1.Broker", V1),
        ("pocketmq.v1.NameServer.Route", V1),
        ("pocketmq.v1.FetchRequest", V1),
        ("pocketmq.v1.FetchRequest.topic", V1),
        ("pocketmq.v1.AskClientRequest.what", V1),
        ("apache.rocketmq.v2.MessagingService.SendMessage", V2),
        ("apache.rocketmq.v2.Code", V2),
        ("apache.rocketmq.v2.TOPIC_NOT_FOUND", V2),
        ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
        ("apache.rocketmq.v2.Code.TOPIC_NOT_FOUND", None),
        ("pocketmq.v1.Broker.Nothing", None),
        ("pocketmq.v1", None),
        ("", None),
        ("google.protobuf.FileDescriptorProto", None),
        ("grpc.health.v1.Health", None),
    ],
    ids=str,
)
def test_a_symbol_is_found_in_its_file_if_a_method_needs_that(
    symbol: str, file: str | None
) -> None:
    found = DescribedFiles(ours()).declaring(symbol)

    assert (found and found.name) == file


def test_every_message_of_the_protocols_is_found() -> None:
    files = DescribedFiles(ours())

    for described in (v1.DESCRIPTOR, v2.DESCRIPTOR):
        for message in described.message_types_by_name.values():
            assert files.declaring(message.full_name) is described


def test_a_file_is_found_by_name_with_all_that_it_imports() -> None:
    files = DescribedFiles(ours())

    found = files.named(V2)
    assert found is not None

    assert found is v2.DESCRIPTOR
    first, *imported = with_imports(found)
    assert first is found
    assert {file.name for file in imported} == {
        "google/protobuf/duration.proto",
        "google/protobuf/timestamp.proto",
    }
    assert files.named("google/protobuf/duration.proto") is not None
    assert files.named("google/protobuf/descriptor.proto") is None


def test_a_service_without_a_description_is_left_out_but_its_messages_are_not() -> None:
    files = DescribedFiles(table("test.Unknown", v1.LookupRequest, v1.LookupReply))

    assert files.services == []
    assert files.declaring("test.Unknown") is None
    assert files.declaring("pocketmq.v1.LookupRequest") is v1.DESCRIPTOR


def test_extensions_are_found_by_what_they_extend() -> None:
    files = DescribedFiles(extended())

    assert files.extensions("a.Open") == [101, 150]
    assert files.extensions("a.Holder") == []
    assert files.extensions("a.S") is None
    assert files.extensions("a.Nothing") is None
    found = [files.extending("a.Open", number) for number in (101, 150, 102)]
    assert [file and file.name for file in found] == ["more.proto", "more.proto", None]
    for symbol in ("a.later", "a.Holder.inner", "a.S.Ask"):
        file = files.declaring(symbol)
        assert file is not None
        assert file.name == "more.proto"
