"""Signatures of calls: how clients in all languages make them, and how a server reads them.

    x-mq-date-time: 20260101T000000Z
    authorization: MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature=74b9e65e…

The signature is HMAC-SHA1 of the bytes of `x-mq-date-time`, keyed with the UTF-8 bytes of the user's secret, in hex of
either case. Some clients add a region and a service (`Credential=alice/region/RocketMQ`). Clients write the date in
three formats, some in local time with a final Z, so it is not checked. A header can therefore be replayed for ever;
only TLS hides it.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..errors import ConfigError, NotAuthenticated
from ..time_text import format_instant
from .secret_files import read_secret_file

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
#: Bytes of the two headers together; valid ones have about 200.
HEADERS_LENGTH_MAX: Final = 2_048

NO_USER: Final = "username cannot be null."
BAD_SIGNATURE: Final = "check signature failed."


def signature(secret: bytes, content: bytes) -> bytes:
    """Return the signature of CONTENT with SECRET."""
    return hmac.digest(secret, content, "sha1")


def signed(user: str, secret: str, date_time: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call of USER, whose secret is SECRET, at DATE_TIME."""
    made = signature(secret.encode(), date_time.encode()).hex()
    credential = user.encode().decode("latin-1")  # Headers are bytes; a name may have any UTF-8.
    return (
        (DATE_TIME, date_time),
        (
            AUTHORIZATION,
            f"{_ALGORITHM} Credential={credential}, SignedHeaders={DATE_TIME}, Signature={made}",
        ),
    )


class Credentials(NamedTuple):
    """The claim of a caller to be USER, with SIGNATURE of CONTENT, which is not verified yet."""

    user: str
    signature: bytes
    content: bytes


def header_bytes(text: str) -> bytes:
    """Return the bytes of a header that arrives as TEXT."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def read_claim(metadata: Mapping[str, str]) -> Credentials | None:
    """Return the claim in METADATA; None: there is none.

    The header is parsed as by Apache RocketMQ's proxy: text up to the first space is skipped, the rest is split at
    commas, and each item at its first `=`. Other items are ignored. Raises NotAuthenticated, with RocketMQ's messages.
    """
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
    """Return the user that METADATA names, verified or not; "": none, or the header is malformed."""
    try:
        claim = read_claim(metadata)
    except NotAuthenticated:
        return ""
    return "" if claim is None else claim.user


def _read_items(text: str) -> tuple[str, bytes]:
    """Return user and signature in TEXT, each empty if missing."""
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


#: Turns 2026-12-24 18:00:00 into 20261224T180000.
_COMPACT: Final = str.maketrans(" ", "T", "-:")


def own_credentials(
    environment: Mapping[str, str], user: str = "", secret: str = ""
) -> tuple[str, str] | None:
    """Return the user and the secret with which PocketMQ's own programs sign; None: they do not sign.

    USER and SECRET have precedence over POCKETMQ_USER and POCKETMQ_SECRET, or POCKETMQ_SECRET_FILE, in ENVIRONMENT.
    Raises ConfigError if only one of user and secret is given.
    """
    user = user or environment.get("POCKETMQ_USER", "")
    if not secret:
        secret = environment.get("POCKETMQ_SECRET", "")
        file = environment.get("POCKETMQ_SECRET_FILE", "")
        if not secret and file:
            secret = read_secret_file(file, "POCKETMQ_SECRET_FILE")
    if not user and not secret:
        return None
    if not user or not secret:
        missing = "user" if secret else "secret"
        raise ConfigError(
            f"{missing} is missing: give a user and a secret together, as user= and secret= or in POCKETMQ_USER"
            " and POCKETMQ_SECRET or POCKETMQ_SECRET_FILE",
            field=missing,
        )
    return user, secret


def signed_now(user: str, secret: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of calls of USER with SECRET. Servers do not check the date: the signature stays valid."""
    # The import brings asyncio, which a probe without a user does not need.
    from ..clock import SystemClock

    now = format_instant(SystemClock().unix_ms())[: len("2026-12-24 18:00:00")]
    return signed(user, secret, f"{now.translate(_COMPACT)}Z")
