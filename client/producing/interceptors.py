"""Interceptors: code of the application that runs before a message is sent and after it is acknowledged.

    class Stamp:
        def on_send(self, message):
            return message.replace(properties={**message.properties, "sent-by": "billing"})
        def on_acknowledgement(self, receipt, error, message):
            sent.labels(message.topic).inc()
    Producer(interceptors=[Stamp()])

An interceptor is any object with at least one of the three methods below. `Interceptor` is a base class whose methods
do nothing. Interceptors are called in the order of the list, each with what the one before it returned. If one raises,
or returns no message, the error is logged and its result is ignored: an interceptor never makes a send fail.

    on_send                in the thread, or on the event loop, of the sender
    on_acknowledgement     in the client's own thread, or on its loop: it must not block. Called once for each message
                           that went through on_send, with its receipt or with the error, before the sender gets it
    close                  once, after the last acknowledgement, in the client's own thread or on its loop

Without interceptors, nothing in this module runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ...proto.errors import ConfigError
from ...proto.facts import Facts
from ..message import Message, UnserializedMessage
from .receipt import Receipt, Receipts, SendOutcome, Watch

logger = logging.getLogger(__name__)

_METHODS: Final = ("on_send", "on_acknowledgement", "close")
Sending: TypeAlias = Message | UnserializedMessage


class Interceptor:
    """Base class of interceptors whose methods do nothing. Override those that you need."""

    def on_send(self, message: Sending) -> Sending:
        """Return the message to send instead of MESSAGE.

        MESSAGE is an UnserializedMessage after `send(topic, value)`, else a Message.
        """
        return message

    def on_acknowledgement(
        self, receipt: Receipt | None, error: BaseException | None, message: Sending
    ) -> None:
        """Called with the RECEIPT of MESSAGE, or with the ERROR. MESSAGE is what `on_send` returned."""

    def close(self) -> None:
        """Called when the producer is closed."""


def check_interceptors(interceptors: Sequence[object]) -> None:
    """Raise ConfigError for an object without any method of an interceptor."""
    for interceptor in interceptors:
        if not any(callable(getattr(interceptor, name, None)) for name in _METHODS):
            raise ConfigError(
                f"interceptors: {interceptor!r} has none of the methods {', '.join(_METHODS)}. Pass objects, not"
                " functions.",
                field="interceptors",
                value=interceptor,
            )


class Interceptors:
    """The chain of one producer."""

    def __init__(self, chain: Sequence[object]) -> None:
        self._on_send, self._on_acknowledgement, self._close = (
            [method for one in chain if (method := getattr(one, name, None)) is not None]
            for name in _METHODS
        )

    def __bool__(self) -> bool:
        """Return whether an interceptor has to be called for messages."""
        return bool(self._on_send or self._on_acknowledgement)

    def on_send(self, message: Sending) -> Sending:
        """Return what the interceptors make of MESSAGE."""
        for method in self._on_send:
            changed = self._result(method, message)
            if isinstance(changed, (Message, UnserializedMessage)):
                message = changed
            elif changed is not _FAILED:
                logger.error(
                    "interceptor returned no message %s",
                    Facts(
                        interceptor=_name(method),
                        topic=message.topic,
                        reason=f"it returned {type(changed).__name__}",
                    ),
                )
        return message

    def on_acknowledgement(
        self, receipt: Receipt | None, error: BaseException | None, message: Sending
    ) -> None:
        """Call the interceptors with the RECEIPT of MESSAGE, or with the ERROR."""
        for method in self._on_acknowledgement:
            self._result(method, receipt, error, message)

    def close(self) -> None:
        """Call `close` of the interceptors."""
        for method in self._close:
            self._result(method)

    def _result(self, method: Callable[..., Any], *arguments: object) -> Any:
        try:
            return method(*arguments)
        except Exception as error:  # The application's code must not make a send fail.
            facts = Facts(interceptor=_name(method), reason=repr(error))
            logger.exception("interceptor failed %s", facts)
            return _FAILED

    def observed(self, messages: Sequence[Sending], outcome: SendOutcome) -> SendOutcome:
        """Return a result that notifies the interceptors about MESSAGES, then settles `outcome`."""
        return _Watched(self, messages, outcome) if self._on_acknowledgement else outcome

    def watch(self, messages: Sequence[Sending]) -> Watch | None:
        """Return a function that observes parts of MESSAGES; None: no interceptor has `on_acknowledgement`."""
        if not self._on_acknowledgement:
            return None
        return lambda first, end, outcome: _Watched(self, messages[first:end], outcome)


_FAILED: Final = object()


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))


class _Watched:
    """A result that notifies the interceptors before it settles the result of the sender."""

    __slots__ = ("_chain", "_messages", "_outcome", "_settled")

    def __init__(
        self, chain: Interceptors, messages: Sequence[Sending], outcome: SendOutcome
    ) -> None:
        self._chain = chain
        self._messages = messages
        self._outcome = outcome
        self._settled = False

    def done(self) -> bool:
        # Not `self._outcome.done()`: interceptors get the result also if the sender was cancelled.
        return self._settled

    def set_result(self, result: Receipt | Receipts, /) -> None:
        self._settled = True
        receipts = (result,) if isinstance(result, Receipt) else result
        for receipt, message in zip(receipts, self._messages, strict=True):
            self._chain.on_acknowledgement(receipt, None, message)
        if not self._outcome.done():
            self._outcome.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._settled = True
        for message in self._messages:
            self._chain.on_acknowledgement(None, exception, message)
        if not self._outcome.done():
            self._outcome.set_exception(exception)
