"""What a listener may say of the messages that it was called with.

    None, True              handled
    False, an exception     failed: it comes again later, or (in order) at once
    Retry, Reject           the same, with a delay and a reason, or to the dead letters at once; raised or returned

Whatever else it says is a failure. The classes of what is said are the application's own, and may raise when they are
asked for words: nothing of that leaves this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index as as_int
from typing import Final, TypeGuard, TypeVar

from ..consuming.sending_back import encodable
from ..received_message import ReceivedMessage
from .process_queue import Failure

_REASON_MAX: Final = 1_000
#: As a request can carry it.
_DELAY_LEVEL_MAX: Final = 2**31 - 1
_DEAD: Final = -1

_Kind = TypeVar("_Kind")


class Retry(Exception):
    """Says that a message shall come again; raise it in a listener, or return it."""

    # What holds for subclasses that do not call __init__.
    reason: str = ""
    delay_level: int = 0
    messages: list[ReceivedMessage] | None = None

    def __init__(
        self,
        reason: str = "",
        *,
        delay_level: int = 0,
        messages: Iterable[ReceivedMessage] | None = None,
    ) -> None:
        """DELAY_LEVEL 1 to 18: after 1 s to 2 h; 0: longer with each retry. REASON stays with it once it is dead.

        MESSAGES: only these of a batch; the others are handled. In order, the batch comes again as a whole.
        """
        super().__init__(reason)
        self.reason = reason
        self.delay_level = delay_level
        self.messages = None if messages is None else list(messages)


class Reject(Retry):
    """Says that a message shall go to the group's dead letters at once; raise it in a listener, or return it."""

    delay_level: int = _DEAD

    def __init__(
        self, reason: str = "", *, messages: Iterable[ReceivedMessage] | None = None
    ) -> None:
        super().__init__(reason, delay_level=_DEAD, messages=messages)


def failure_of(said: object) -> Failure | None:
    """Return what a listener SAID as a failure; None: the message is handled."""
    if said is None or said is True:
        return None
    if said is False:
        return Failure(0, "the listener returned False")
    name = type(said).__name__
    if _is_a(said, Retry):
        return Failure(_delay_level(said), _words(lambda: _reason(said), name))
    if _is_a(said, BaseException):
        return Failure(0, _words(lambda: f"{name}: {said}", name), said)
    odd = _words(lambda: repr(said), name)
    return Failure(
        0, f"the listener returned {odd}, which means nothing: None or True"[:_REASON_MAX]
    )


def named_by(said: object) -> set[ReceivedMessage] | None:
    """Return the messages that SAID names as those that failed; None: all that the listener was called with."""
    if not _is_a(said, Retry):
        return None
    try:
        return None if said.messages is None else set(said.messages)
    except (
        BaseException
    ):  # A subclass says what nobody understands: better once too often than lost.
        return None


def _is_a(said: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    # By its type alone: an object may raise when it is asked for its __class__.
    return issubclass(type(said), kind)


def _reason(said: Retry) -> str:
    return "" if said.reason is None else str(said.reason)


def _delay_level(said: Retry) -> int:
    """Return the delay level of SAID as a request can carry it; what is no number: longer with each retry."""
    try:
        return max(_DEAD, min(as_int(said.delay_level), _DELAY_LEVEL_MAX))
    except BaseException:  # As in `named_by`.
        return 0


def _words(speak: Callable[[], str], name: str) -> str:
    """Return what SPEAK says, cut and fit for a request; NAME if it cannot."""
    try:
        return encodable(speak()[:_REASON_MAX])
    except BaseException:  # Errors that cannot be put into words are failures like others.
        return name
