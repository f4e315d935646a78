"""Errors survive the wire: every class, with its sentence and details, within the bounds of metadata."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto import errors
from pocketmq.proto.errors_wire import (
    ERROR_KEY,
    ERROR_SIZE_MAX,
    failure_of,
    from_rpc_error,
    from_wire,
    to_wire,
)
from pocketmq.proto.gen.pocketmq_v1_pb2 import Error
from pocketmq.proto.rpc import errors as rpc


def rpc_error(
    code: grpc.StatusCode, details: str | None, metadata: tuple[tuple[str, str | bytes], ...] = ()
) -> grpc.RpcError:
    """Return an error as a failed call raises it."""
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details, None
    )


@pytest.mark.parametrize("kind", errors.BY_NAME.values(), ids=lambda kind: kind.__name__)
def test_every_class_comes_back_as_itself(kind: type[errors.PocketMQError]) -> None:
    raised = kind("the queue 7 of topic T does not exist", queue=7, topic="T")

    seen = from_wire(Error.FromString(to_wire(raised).SerializeToString()))

    assert type(seen) is kind
    assert seen.message == raised.message
    assert seen.details == {"queue": "7", "topic": "T"}


@pytest.mark.parametrize("kind", errors.BY_NAME.values(), ids=lambda kind: kind.__name__)
def test_every_class_has_a_grpc_status(kind: type[errors.PocketMQError]) -> None:
    assert grpc.StatusCode[kind.status] is not grpc.StatusCode.OK


def test_the_path_of_a_queue_travels_without_its_topic() -> None:
    path = "/store/consumequeue/a topic/0/00000000000000000000"
    raised = errors.DiskFailure(f"cannot sync {path}: input/output error", path=path)

    wire = to_wire(raised)

    hidden = "/store/consumequeue/…/0/00000000000000000000"
    assert wire.message == f"cannot sync {hidden}: input/output error"
    assert wire.details == {"path": hidden}
    assert failure_of(raised).message == wire.message


def test_an_unknown_class_becomes_the_root() -> None:
    seen = from_wire(Error(name="FromTheFuture", message="new", details={"a": "b"}))

    assert type(seen) is errors.PocketMQError
    assert (seen.message, seen.details) == ("new", {"a": "b"})


@given(message=st.text(), details=st.dictionaries(st.text(), st.text(min_size=0)))
def test_any_text_travels_within_the_bound(message: str, details: dict[str, str]) -> None:
    error = errors.PocketMQError(message * 20)
    error.details = {name: value * 20 for name, value in details.items()}

    assert len(to_wire(error).SerializeToString()) <= ERROR_SIZE_MAX


def test_a_long_sentence_is_cut_with_a_sign_of_it() -> None:
    wire = to_wire(errors.InvalidArgument("x" * 10_000, value="y" * 10_000))

    assert wire.message.endswith("x…")
    assert wire.details["value"].endswith("y…")


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    assert to_wire(errors.InvalidName("bad \udcff")).message == "bad \\udcff"


def test_a_failed_call_raises_what_the_server_raised() -> None:
    metadata = ((ERROR_KEY, to_wire(errors.StoreFull("full", limit=90)).SerializeToString()),)

    seen = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata))

    assert type(seen) is errors.StoreFull
    assert seen.details == {"limit": "90"}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", errors.ConnectionLost),
        ("DEADLINE_EXCEEDED", errors.RequestTimeout),
        ("CANCELLED", errors.ClientClosed),
        ("UNIMPLEMENTED", errors.Unsupported),
        ("RESOURCE_EXHAUSTED", errors.Overloaded),
        ("INVALID_ARGUMENT", errors.InvalidArgument),
        ("UNKNOWN", errors.PocketMQError),
    ],
)
def test_a_status_of_grpc_itself_is_named_by_its_code(
    code: str, kind: type[errors.PocketMQError]
) -> None:
    seen = from_rpc_error(rpc_error(grpc.StatusCode[code], None))

    assert type(seen) is kind
    assert seen.details == {"code": code}


def test_a_request_beyond_the_carriers_bound_is_too_large() -> None:
    sentence = "SERVER: Received message larger than max (67108865 vs. 67108864)"

    seen = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence))

    assert type(seen) is errors.MessageTooLarge


def test_a_write_to_a_stream_that_has_ended_is_a_broken_connection() -> None:
    seen = from_rpc_error(rpc_error(grpc.StatusCode.INTERNAL, "Internal error from Core"))

    assert type(seen) is errors.ConnectionLost


@pytest.mark.parametrize(
    ("servers", "kind"),
    [
        (rpc.BadRequest, errors.InvalidArgument),
        (rpc.TooLarge, errors.MessageTooLarge),
        (rpc.ResourceExhausted, errors.Overloaded),
        (rpc.Unimplemented, errors.Unsupported),
        (rpc.DeadlineExceeded, errors.RequestTimeout),
        (rpc.Stopping, errors.ShuttingDown),
        (rpc.InternalError, errors.PocketMQError),
        (rpc.CannotListen, errors.ConfigError),
    ],
)
def test_what_a_server_answers_itself_travels_as_one_of_ours(
    servers: type[rpc.RpcError], kind: type[errors.PocketMQError]
) -> None:
    status, sentence, trailing = failure_of(servers("no", field="f", limit=3))

    seen = from_rpc_error(rpc_error(grpc.StatusCode[status], sentence, trailing))

    assert type(seen) is kind
    assert (seen.message, seen.details) == ("no", {"field": "f", "limit": "3"})
    assert status == (servers.status if servers is rpc.TooLarge else kind.status)
