"""What a listener says is understood, however oddly it is said."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.client import Reject, Retry
from pocketmq.client.pushing.listening import failed_messages_of, failure_of
from pocketmq.client.pushing.process_queue import Failure
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .test_process_queue import held


class Unspeakable(Exception):
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class Unasked:
    """An object that does not say what it is: as the proxies of web frameworks outside of a request."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError

    def __repr__(self) -> str:
        raise SystemExit


class BareRetry(Retry):
    """A Retry of the application's own, which forgot to call Retry's."""

    def __init__(self) -> None:
        pass


class BareReject(Reject):
    def __init__(self) -> None:
        pass


class Muddled(Retry):
    """A Retry whose fields are none of those that it should have."""

    delay_level: Any = "3"
    messages: Any = 7

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("said", [None, True])
def test_nothing_and_true_mean_handled(said: object) -> None:
    assert failure_of(said) is None


@pytest.mark.parametrize(
    ("said", "level", "reason"),
    [
        (False, 0, "the listener returned False"),
        (7, 0, "the listener returned 7: return None or True"),
        (Retry("later", delay_level=5), 5, "later"),
        (Reject("nonsense"), -1, "nonsense"),
        (Retry(ValueError("no luck")), 0, "no luck"),  # type: ignore[arg-type]
        (Retry(None), 0, ""),  # type: ignore[arg-type]
        (Retry(Unspeakable(), delay_level=2), 2, "Retry"),  # type: ignore[arg-type]
        (BareRetry(), 0, ""),
        (BareReject(), -1, ""),
        (Muddled(), 0, ""),
        (Retry("far", delay_level=2**40), 2**31 - 1, "far"),
        (Retry("far", delay_level=-(2**40)), -1, "far"),
        (Unspeakable(), 0, "Unspeakable"),
        (OSError("caf\udce9.txt"), 0, "OSError: caf\\udce9.txt"),
        (ValueError("x" * 5_000), 0, "ValueError: " + "x" * 988),
    ],
)
def test_everything_else_is_a_failure_that_a_request_can_carry(
    said: object, level: int, reason: str
) -> None:
    failure = failure_of(said)

    assert failure is not None
    assert (failure.delay_level, failure.reason) == (level, reason)
    pb.SendBackRequest(delay_level=failure.delay_level, reason=failure.reason)


def test_an_object_that_does_not_say_what_it_is_is_a_failure() -> None:
    failure = failure_of(Unasked())

    assert failure is not None
    assert failure.reason == "the listener returned Unasked: return None or True"


def test_what_was_raised_is_kept_with_the_failure() -> None:
    error = Unspeakable()

    assert failure_of(error) == Failure(0, "Unspeakable", error)


def test_a_retry_names_messages_or_all() -> None:
    _, (portion,) = held(0, 1)
    messages = portion.run.messages()

    assert failed_messages_of(Retry(messages=iter(messages[1:]))) == {messages[1]}
    assert failed_messages_of(Retry(messages=[])) == set()
    assert failed_messages_of(Retry()) is None
    assert failed_messages_of(ValueError()) is None


def test_who_names_nothing_that_is_understood_names_all() -> None:
    assert failed_messages_of(Muddled()) is None
