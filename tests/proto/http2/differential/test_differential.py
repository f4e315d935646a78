"""Our own carrier against grpcio: the same calls get the same answers, and handlers see the same of them.

Where the two differ on purpose stands in `DIFFERENCES`, with the reason; each difference is tested to be one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, NamedTuple

import pytest

from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc import Limits

from .bench import Bench, Outcome
from .cases import HARMLESS, MESSAGE_BYTES_MAX, OTHER, Case, generated, made
from .witness import WireObserver

pytestmark = pytest.mark.slow

GENERATED = 300
_LIMITS: Final = Limits(receive_bytes_max=MESSAGE_BYTES_MAX)

#: grpcio never answers: there is nothing to wait for.
SILENCE: Final = "silence"


class Difference(NamedTuple):
    """How the carriers answer, in brief, and why ours does not do as grpcio does."""

    grpcio: str
    own: str
    why: str


_MALFORMED: Final = "malformed requests are reset with PROTOCOL_ERROR (RFC 9113 §8.1.1)"
_FIELDS: Final = "fields that RFC 9113 §8.2.1 and §8.2.2 forbid make a request malformed"
_LENGTH: Final = "a content-length that lies makes a request malformed (RFC 9113 §8.1.1)"
_NOT_GRPC: Final = "what is not gRPC gets HTTP 415 (PROTOCOL-HTTP2.md)"
_NOT_POST: Final = "other methods than POST get HTTP 405, which their clients understand"
_TIMEOUT: Final = (
    "a bad timeout is the caller's mistake and not ours; digits are eight at most, and nothing else"
)
_ENCODING: Final = (
    "an encoding that is not known is UNIMPLEMENTED, and what is known is said (compression.md)"
)
_COMPRESSED: Final = "bytes that do not inflate are the caller's mistake and not ours"
_ONE_MESSAGE: Final = (
    "a unary call has one message; without an answer its caller would wait for ever"
)
_LENIENT: Final = "it does no harm, and there are clients that do so"

DIFFERENCES: Final = {
    "no authority": Difference("reset 2", "good", _LENIENT),
    "no te": Difference("reset 2", "good", _LENIENT),
    "unknown scheme": Difference("status 13", "good", _LENIENT),
    "binary metadata that is none": Difference("status 13", "good", "handlers do not see it"),
    "empty path": Difference("status 12", "reset 1", _MALFORMED),
    "no path": Difference("reset 2", "reset 1", _MALFORMED),
    "no method": Difference("reset 2", "reset 1", _MALFORMED),
    "no scheme": Difference("reset 2", "reset 1", _MALFORMED),
    "another te": Difference("status 13", "reset 1", _FIELDS),
    "upper case": Difference("status 13", "reset 1", _FIELDS),
    "empty name": Difference("status 13", "reset 1", _FIELDS),
    "line break": Difference("good", "reset 1", _FIELDS),
    "white space around": Difference("good", "reset 1", _FIELDS),
    "connection": Difference("good", "reset 1", _FIELDS),
    "unknown pseudo-field": Difference("status 13", "reset 1", _MALFORMED),
    "pseudo-field among trailers": Difference("good", "reset 1", _MALFORMED),
    "content-length too small": Difference("good", "reset 1", _LENGTH),
    "content-length too large": Difference("good", "reset 1", _LENGTH),
    "content-length that is none": Difference("good", "reset 1", _LENGTH),
    "too much metadata": Difference("status 8", "status 8", "a handler of grpcio may see it first"),
    "GET": Difference("reset 2", "HTTP 405", _NOT_POST),
    "PUT": Difference("reset 2", "HTTP 405", _NOT_POST),
    "OPTIONS": Difference("status 13", "HTTP 405", _NOT_POST),
    "no content-type": Difference("good", "HTTP 415", _NOT_GRPC),
    "content-type of JSON": Difference("good", "HTTP 415", _NOT_GRPC),
    "content-type of gRPC-Web": Difference("good", "HTTP 415", _NOT_GRPC),
    "content-type with a tail": Difference("good", "HTTP 415", _NOT_GRPC),
    "content-type in upper case": Difference("good", "HTTP 415", _NOT_GRPC),
    "timeout without a unit": Difference("status 13", "status 3", _TIMEOUT),
    "timeout without a number": Difference("status 13", "status 3", _TIMEOUT),
    "negative timeout": Difference("status 13", "status 3", _TIMEOUT),
    "timeout with a fraction": Difference("status 13", "status 3", _TIMEOUT),
    "timeout of an unknown unit": Difference("status 13", "status 3", _TIMEOUT),
    "empty timeout": Difference("status 13", "status 3", _TIMEOUT),
    "timeout of nine digits": Difference("good", "status 3", _TIMEOUT),
    "timeout with a space": Difference("good", "status 3", _TIMEOUT),
    "unknown encoding": Difference("status 13", "status 12", _ENCODING),
    "empty encoding": Difference("status 13", "status 12", _ENCODING),
    "deflate": Difference("good", "status 12", "nobody sends it, and gzip is enough"),
    "gzip that is none": Difference("status 13", "status 3", _COMPRESSED),
    "gzip that is cut": Difference("status 13", "status 3", _COMPRESSED),
    "compressed without an encoding": Difference("status 13", "status 3", _COMPRESSED),
    "compressed as identity": Difference("status 13", "status 3", _COMPRESSED),
    "unknown flag": Difference("good", "status 3", "grpcio takes it for an empty message"),
    "no message": Difference(SILENCE, "status 3", _ONE_MESSAGE),
    "no body": Difference(SILENCE, "status 3", _ONE_MESSAGE),
    "half a prefix": Difference(SILENCE, "status 3", _ONE_MESSAGE),
    "half a message": Difference(SILENCE, "status 3", _ONE_MESSAGE),
    "two messages": Difference("good", "status 3", _ONE_MESSAGE),
    "a message and half of one": Difference("good", "status 3", _ONE_MESSAGE),
}


@pytest.fixture
async def grpcio() -> AsyncIterator[Bench]:
    witness = WireObserver()
    carrier = GrpcioCarrier([witness.methods()], limits=_LIMITS)
    async with Bench.open(carrier, witness) as bench:
        yield bench


@pytest.fixture
async def own() -> AsyncIterator[Bench]:
    witness = WireObserver()
    async with Bench.open(Http2Carrier([witness.methods()], limits=_LIMITS), witness) as bench:
        yield bench


@pytest.mark.parametrize("aspect", [*HARMLESS, *OTHER])
async def test_carriers_differ_only_where_it_is_meant(
    aspect: str, grpcio: Bench, own: Bench
) -> None:
    case = made([aspect])
    ours = await own.play(case)
    difference = DIFFERENCES.get(aspect)
    if difference is None:
        assert ours == await _by_grpcio(grpcio, case)
        assert aspect in OTHER or ours.sight is not None
        return
    assert ours.brief == difference.own, difference.why
    if difference.grpcio != SILENCE:
        assert (await _by_grpcio(grpcio, case)).brief == difference.grpcio
    if difference.own != "good":
        assert ours.sight is None


@pytest.mark.long
async def test_generated_calls_have_the_same_outcome_on_either_carrier(
    grpcio: Bench, own: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    for seed in range(GENERATED):
        aspects = generated(seed, without=DIFFERENCES)
        case = made(aspects)
        assert await own.play(case) == await _by_grpcio(grpcio, case), (seed, aspects)


async def _by_grpcio(grpcio: Bench, case: Case) -> Outcome:
    """Return what becomes of CASE. A handler of grpcio may never hear that its caller went, one in thousands: again."""
    for _ in range(2):
        with suppress(TimeoutError):
            return await grpcio.play(case)
    return await grpcio.play(case)
