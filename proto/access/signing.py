"""The signature that names a caller: how clients of all languages make it, and how a server reads it. Pure.

    x-mq-date-time: 20260101T000000Z
    authorization: MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature=74b9e65e…

The signature is HMAC-SHA1 of the bytes of `x-mq-date-time`, keyed with the UTF-8 bytes of the user's secret, in hex of
either case. Some clients put a region and a service behind the user (`Credential=alice/region/RocketMQ`). Clients write
three formats of date, some in local time with a Z behind it, so no date is looked at: who has seen one header can send
it for ever, and TLS is what hides it.

A header is read as Apache RocketMQ's proxy does: everything up to the first space is skipped, the rest split at commas,
each item at its first `=`; other items are passed over.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..errors import NotAuthenticated

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
#: Bytes of the two headers together; honest ones have some 200.
HEADERS_LENGTH_MAX: Final = 2_048

NO_USER: Final = "username cannot be null."
BAD_SIGNATURE: Final = "check signature failed."


def signature(secret: bytes, date_time: bytes) -> bytes:
    """Return what the owner of SECRET signs DATE_TIME with."""
    return hmac.digest(secret, date_time, "sha1")


def signed(user: str, secret: str, date_time: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call of USER, whose secret is SECRET, at DATE_TIME."""
    made = signature(secret.encode(), date_time.encode()).hex()
    credential = user.encode().decode("latin-1")  # Headers are bytes; a name may be any UTF-8.
    return (
        (DATE_TIME, date_time),
        (
            AUTHORIZATION,
            f"{_ALGORITHM} Credential={credential}, SignedHeaders={DATE_TIME}, Signature={made}",
        ),
    )


class Credentials(NamedTuple):
    """Who a caller says to be: USER, with SIGNATURE of DATE_TIME, which nobody has compared yet."""

    user: str
    signature: bytes
    date_time: bytes


def header_bytes(text: str) -> bytes:
    """Return the bytes of a header that a carrier hands on as TEXT."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def read_claim(metadata: Mapping[str, str]) -> Credentials | None:
    """Return what METADATA claims; None: nothing. Raises NotAuthenticated, in Apache's words, for a broken header."""
    header = metadata.get(AUTHORIZATION)
    if header is None:
        return None
    date_time = metadata.get(DATE_TIME)
    if len(header) + len(date_time or "") > HEADERS_LENGTH_MAX:
        raise NotAuthenticated(
            f"authorization: the header is longer than {HEADERS_LENGTH_MAX} bytes",
            field=AUTHORIZATION,
            limit=HEADERS_LENGTH_MAX,
            value=len(header),
        )
    _, space, rest = header.partition(" ")
    if not space:
        raise NotAuthenticated("authentication header is incorrect.", field=AUTHORIZATION)
    user, given = _read_items(rest)
    if not user:
        return None
    if date_time is None:
        raise NotAuthenticated("datetime is null.", field=DATE_TIME)
    try:
        name = header_bytes(user).decode()
    except UnicodeDecodeError:
        raise NotAuthenticated(BAD_SIGNATURE, field=AUTHORIZATION) from None
    return Credentials(name, given, header_bytes(date_time))


def claimed_user(metadata: Mapping[str, str]) -> str:
    """Return the user whom METADATA names, whether that is true or not; "": none, or nothing that can be read."""
    try:
        claim = read_claim(metadata)
    except NotAuthenticated:
        return ""
    return "" if claim is None else claim.user


def _read_items(text: str) -> tuple[str, bytes]:
    """Return user and signature in TEXT, each empty if it is not there."""
    user, given = "", b""
    for item in text.rstrip(",").split(","):
        key, equals, value = item.strip().partition("=")
        if not equals:
            raise NotAuthenticated(
                "authentication keyValues length is incorrect, actual length=1.",
                field=AUTHORIZATION,
            )
        if key == "Credential":
            user = value.partition("/")[0].strip()
        elif key == "Signature":
            try:
                given = binascii.unhexlify(value.strip())
            except (binascii.Error, ValueError):
                raise NotAuthenticated(
                    "create authentication context error.", field=AUTHORIZATION
                ) from None
    return user, given
