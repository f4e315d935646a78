"""Signatures of remoting requests: recorded vectors, and what is signed."""

from __future__ import annotations

import base64

import pytest

from pocketmq.proto.access.signing import signature
from pocketmq.proto.remoting.command import RemotingCommand
from pocketmq.proto.remoting.signatures import claim_in, signed_content

#: These were accepted by Apache RocketMQ 5.5.0. The secret is alice-secret.
VECTORS = [
    ({"topic": "orders", "AccessKey": "alice"}, b"", "ov5aT8tNouLiPVq7L4+jtvTqxeU="),
    (
        {"a": "pg", "b": "orders", "c": "TBW102", "AccessKey": "alice", "SecurityToken": "tok"},
        b"hello",
        "z9Gb3Z0THSAOfMTIe6ufbbjPDIw=",
    ),
]


@pytest.mark.parametrize(("fields", "body", "recorded"), VECTORS)
def test_recorded_signatures_are_right(fields: dict[str, str], body: bytes, recorded: str) -> None:
    command = RemotingCommand(code=105, fields=fields | {"Signature": recorded}, body=body)
    claim = claim_in(command)

    assert claim is not None
    assert claim.user == "alice"
    assert claim.signature == base64.b64decode(recorded)
    assert signature(b"alice-secret", claim.content) == claim.signature


def test_values_are_in_the_order_in_which_java_compares_names() -> None:
    """A name of two UTF-16 code units comes before U+FF5E, although its code point is larger."""
    fields = {"\uff5e": "3", "\U00010000": "2", "Z": "1", "Signature": "no"}

    assert signed_content(RemotingCommand(code=1, fields=fields, body=b"-x")) == b"123-x"


@pytest.mark.parametrize(
    ("version", "content"), [(317, b"alice"), (399, b"alice"), (401, b"alicetrue")]
)
def test_old_clients_do_not_sign_one_field(version: int, content: bytes) -> None:
    fields = {"AccessKey": "alice", "_UNIQUE_KEY_QUERY": "true"}

    assert signed_content(RemotingCommand(code=12, fields=fields, version=version)) == content


@pytest.mark.parametrize("fields", [{}, {"AccessKey": ""}, {"Signature": "x"}])
def test_a_request_without_a_user_has_no_claim(fields: dict[str, str]) -> None:
    assert claim_in(RemotingCommand(code=105, fields=fields)) is None


@pytest.mark.parametrize(
    "text", ["", "*", "ov5a=T8t", "ov5aT8tNouLiPVq7L4+jtvTqxeU", "ü", "A" * 4_096]
)
def test_a_malformed_signature_is_an_empty_one(text: str) -> None:
    claim = claim_in(RemotingCommand(code=105, fields={"AccessKey": "alice", "Signature": text}))

    assert claim is not None
    assert claim.signature == b""
