"""The signature of callers, with the vectors of the official clients."""

from __future__ import annotations

import pytest

from pocketmq.proto.access.signing import (
    AUTHORIZATION,
    DATE_TIME,
    HEADERS_LENGTH_MAX,
    Credentials,
    read_claim,
    signature,
    signed,
)
from pocketmq.proto.errors import NotAuthenticated

DATE = "20260101T000000Z"
#: Of the official Python client's own code: secret, date, signature.
VECTORS = [
    ("alice-secret", DATE, "74b9e65ec699eb3110e8032ebaaa1c1ac59a2eac"),
    ("12345678", DATE, "744d438196af86606d44b8c9a7c8e0e0b2ffb22b"),
    ("", DATE, "2ebe5ef4b7204beff381c5aa56d327955aeb6bdf"),
    ("Schlüssel-密", "20261122T131500Z", "ba602f7b5f82532a8f4c0cfc96c34741426c08ca"),
    ("k" * 80, "20261122T131500Z", "bb689bcbe74232484abbc9d760d9207481015caa"),
    ("alice-secret", "20261122T131258Z", "cc373c45ad744d8ca488785b2d70c4518d1ed0d8"),
]
SIGNATURE = VECTORS[0][2]
GOOD = f"MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature={SIGNATURE}"


@pytest.mark.parametrize(("secret", "date", "made"), VECTORS)
def test_a_signature_is_that_of_the_official_clients(secret: str, date: str, made: str) -> None:
    assert signature(secret.encode(), date.encode()).hex() == made


@pytest.mark.parametrize(
    "header",
    [
        GOOD,
        GOOD.replace(SIGNATURE, SIGNATURE.upper()),
        GOOD.replace("alice", "alice/cn-hangzhou/RocketMQ"),
        GOOD.replace("alice", "alice//Rocketmq"),
        GOOD.replace("MQv2-HMAC-SHA1", "FOO"),
        f"MQv2-HMAC-SHA1 Credential=alice,Signature={SIGNATURE}",
        f"{GOOD},",
    ],
)
def test_headers_of_all_languages_are_read_alike(header: str) -> None:
    claim = read_claim({AUTHORIZATION: header, DATE_TIME: DATE})
    assert claim == Credentials("alice", bytes.fromhex(SIGNATURE), DATE.encode())


@pytest.mark.parametrize("date", ["2026-11-22T13:12:58.123+08:00", "19990101T000000Z", "whatever"])
def test_a_date_may_be_any_bytes(date: str) -> None:
    claim = read_claim({AUTHORIZATION: GOOD, DATE_TIME: date})
    assert claim is not None
    assert claim.content == date.encode()


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {DATE_TIME: DATE},
        {AUTHORIZATION: f"MQv2-HMAC-SHA1 Credential=, Signature={SIGNATURE}", DATE_TIME: DATE},
        {AUTHORIZATION: "Basic YWxpY2U6c2VjcmV0=", DATE_TIME: DATE},
    ],
)
def test_who_names_no_user_claims_nothing(metadata: dict[str, str]) -> None:
    assert read_claim(metadata) is None


@pytest.mark.parametrize(
    ("header", "date", "text"),
    [
        ("MQv2-HMAC-SHA1", DATE, "authentication header is incorrect."),
        (
            "MQv2-HMAC-SHA1 Credential=alice, Signature",
            DATE,
            "authentication keyValues length is incorrect, actual length=1.",
        ),
        (
            "MQv2-HMAC-SHA1 Credential=alice, Signature=xyz",
            DATE,
            "create authentication context error.",
        ),
        (
            "MQv2-HMAC-SHA1 Credential=alice, Signature=é",
            DATE,
            "create authentication context error.",
        ),
        (GOOD, None, "datetime is null."),
    ],
)
def test_a_broken_header_gets_the_error_text_of_rocketmq(
    header: str, date: str | None, text: str
) -> None:
    metadata = {AUTHORIZATION: header} | ({} if date is None else {DATE_TIME: date})
    with pytest.raises(NotAuthenticated) as caught:
        read_claim(metadata)
    assert caught.value.message == text


def test_headers_that_are_too_long_are_refused() -> None:
    with pytest.raises(NotAuthenticated, match=str(HEADERS_LENGTH_MAX)):
        read_claim({AUTHORIZATION: GOOD, DATE_TIME: "x" * HEADERS_LENGTH_MAX})


@pytest.mark.parametrize("user", ["alice", "Jörg-密"])
def test_what_our_own_clients_sign_is_read_again(user: str) -> None:
    metadata = dict(signed(user, "Schlüssel-密", "20261122T131500Z"))
    assert all(text.encode("latin-1") for text in metadata.values())
    claim = read_claim(metadata)
    assert claim == Credentials(user, bytes.fromhex(VECTORS[3][2]), b"20261122T131500Z")
