"""What the fields of an answer mean."""

from __future__ import annotations

import pytest

from pocketmq.proto.rpc.channels import CallFailed, StatusCode
from pocketmq.proto.rpc.client_calls import AnswerReader, of_trailers

from ..http2.calls import message

GRPC = [("content-type", "application/grpc+proto")]


def test_trailers_say_status_text_and_metadata() -> None:
    status = of_trailers(
        [
            ("grpc-status", "5"),
            ("grpc-message", "no queue%3A 9 %E2%80%A6"),
            ("colour", "blue"),
            ("x-bin", "AAE"),
            ("x-bin", "Ag==, Aw"),
            ("bad-bin", "?"),
        ]
    )

    assert status.code is StatusCode.NOT_FOUND
    assert status.details == "no queue: 9 …"
    assert status.trailing == (
        ("colour", "blue"),
        ("x-bin", b"\x00\x01"),
        ("x-bin", b"\x02"),
        ("x-bin", b"\x03"),
    )


@pytest.mark.parametrize("number", [None, "17", "-1", "x", ""])
def test_a_status_that_is_none_is_unknown(number: str | None) -> None:
    fields = [] if number is None else [("grpc-status", number)]

    assert of_trailers(fields).code is StatusCode.UNKNOWN


def test_an_answer_that_ends_amid_a_message_is_no_good_one() -> None:
    reader = AnswerReader(100)
    assert reader.head(200, GRPC, ended=False) is None

    assert list(reader.data(message(b"abc")[:6])) == []

    assert reader.end([("grpc-status", "0")]).code is StatusCode.INTERNAL


@pytest.mark.parametrize("size", [1, 3, 6, 100])
def test_messages_are_put_together_however_they_were_cut(size: int) -> None:
    reader = AnswerReader(100)
    reader.head(200, GRPC, ended=False)
    body = message(b"one") + message(b"") + message(b"three")

    found = [
        piece for at in range(0, len(body), size) for piece in reader.data(body[at : at + size])
    ]

    assert found == [b"one", b"", b"three"]


def test_a_message_that_is_compressed_without_notice_is_refused() -> None:
    reader = AnswerReader(100)
    reader.head(200, GRPC, ended=False)

    with pytest.raises(CallFailed) as caught:
        list(reader.data(message(b"abc", compressed=1)))

    assert caught.value.code() is StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("http_status", "code"),
    [
        (401, StatusCode.UNAUTHENTICATED),
        (403, StatusCode.PERMISSION_DENIED),
        (404, StatusCode.UNIMPLEMENTED),
        (429, StatusCode.UNAVAILABLE),
        (503, StatusCode.UNAVAILABLE),
        (418, StatusCode.UNKNOWN),
        (200, StatusCode.UNKNOWN),
    ],
)
def test_an_answer_that_is_no_grpc_is_told_by_its_http_status(
    http_status: int, code: StatusCode
) -> None:
    status = AnswerReader(100).head(http_status, [("content-type", "text/html")], ended=False)

    assert status is not None
    assert status.code is code


def test_a_status_in_the_head_counts_whatever_http_says() -> None:
    status = AnswerReader(100).head(415, [("grpc-status", "3")], ended=True)

    assert status is not None
    assert status.code is StatusCode.INVALID_ARGUMENT
