"""Receives: what is asked of a pop and what comes of it, the handles of what was delivered, and receives that wait.

A receive that waits is an operation of the purgatory, found by group and topic, and by client.

A receipt handle says which delivery of which message an acknowledgement means:

    p or r    from the topic that was asked for, or from the group's retry topic
    queue - offset - serial    hexadecimal

The serial is the delivery's: 64 bits of chance, so that nobody names a delivery that was not its own, and no two of a
message have the same, over restarts too, whatever became of the journal. To a client a handle is a text that it hands
back; it is as good as the journal's memory of its serial, of whichever version of ours the journal is.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ...proto.errors import InvalidReceiptHandle, Overloaded, PocketMQError
from ...proto.topics import RETRY_PREFIX, retry_topic
from ..config import BrokerConfig
from ..messages.filters import FilterChoice
from ..timing.waiting import Purgatory, WatchedOperation, end_of_wait

logger = logging.getLogger(__name__)
_KINDS: Final = {"p": False, "r": True}
_SHOWN_MAX: Final = 80
#: Serials that are drawn at once: a draw costs more than a serial.
_DRAWN: Final = 512


# --- what is asked, and what comes of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One receive. CHOICE is a filter at work (filters.py), None for every message.

    BATCH messages at most; each is invisible to others for INVISIBLE_MS, or, with AUTO_RENEW, while the client lives.
    A receive that repeats an ATTEMPT_ID gets the same messages, while they are not finished.
    WAIT_MS: how long it waits where there is nothing.
    """

    group: str
    topic: str
    client_id: str
    batch: int
    invisible_ms: int
    wait_ms: int = 0
    auto_renew: bool = False
    attempt_id: str = ""
    choice: FilterChoice | None = None


class Rules(NamedTuple):
    """What a group and a topic say of a receive."""

    attempts_max: int
    #: The topic's queues, in the order in which they are looked at.
    queues: Sequence[int]
    #: A group that is new begins with the oldest message of a queue, otherwise behind the newest.
    from_oldest: bool = True


class PoppedMessage(NamedTuple):
    """One delivery: RECORD is whole, as it is stored; ATTEMPT counts from 1."""

    record: bytes
    topic: str
    queue: int
    offset: int
    attempt: int
    handle: str
    invisible_ms: int


class Taken(NamedTuple):
    """What a look found: DELIVERIES; how many messages were BURIED; MORE: there is more to look at."""

    deliveries: list[PoppedMessage]
    buried: int
    more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Popped:
    """The end of a receive. FILTERED_ONLY: nothing was delivered, for what was due went to the dead letters.

    ERROR: nothing was delivered, and why.
    """

    deliveries: Sequence[PoppedMessage] = ()
    filtered_only: bool = False
    error: PocketMQError | None = None


# --- receipt handles


class Handle(NamedTuple):
    """What a receipt handle says."""

    is_retry: bool
    queue: int
    offset: int
    serial: int


def encode_handle(is_retry: bool, queue: int, offset: int, serial: int) -> str:
    """Return the handle of delivery SERIAL of the message at OFFSET."""
    return f"{'r' if is_retry else 'p'}{queue:x}-{offset:x}-{serial:x}"


def decode_handle(text: str) -> Handle:
    """Return what TEXT says; raise InvalidReceiptHandle."""
    try:
        queue, offset, serial = text[1:].split("-")
        return Handle(_KINDS[text[0]], int(queue, 16), int(offset, 16), int(serial, 16))
    except (ValueError, LookupError):
        raise InvalidReceiptHandle(
            f"receipt handle {text[:_SHOWN_MAX]!r} is none of this broker's: give the one that came with the message",
            field="receipt_handle",
            value=text[:_SHOWN_MAX],
        ) from None


def finished(text: str) -> InvalidReceiptHandle:
    """Return the refusal of TEXT, the handle of a message that is finished."""
    return InvalidReceiptHandle(
        f"receipt handle {text[:_SHOWN_MAX]!r}: its message is finished", field="receipt_handle"
    )


def serials_from(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """Yield serials, of what RANDOM_BYTES returns: so many bytes that nobody can foretell. None is 0."""
    form = struct.Struct(f"<{_DRAWN}Q")
    while True:
        yield from filter(None, form.unpack(random_bytes(form.size)))


# --- receives that wait


class ReceiveServer(Protocol):
    """Who serves receives."""

    def take(self, asked: Asked) -> Taken:
        """Deliver what there is for ASKED."""
        ...

    def look_on(self, receive: Receive) -> None:
        """Have RECEIVE look on in a later turn of the loop."""
        ...


class Receive:
    """What ASKED says, by SERVER, among WAITS; DONE is told the end, once."""

    __slots__ = ("_done", "_is_looking_on", "_server", "_waits", "asked", "waiting")

    def __init__(
        self, server: ReceiveServer, waits: PopWaits, asked: Asked, done: Callable[[Popped], None]
    ) -> None:
        self._server = server
        self._waits = waits
        self._done = done
        #: Does a later turn look on? Then nothing else does.
        self._is_looking_on = False
        self.asked = asked
        self.waiting: WatchedOperation | None = None

    def try_complete(self) -> bool:
        if self._is_looking_on:
            return False
        try:
            taken = self._server.take(self.asked)
        except PocketMQError as error:
            self._answer(Popped(error=error))
            return True
        except Exception:  # The edge: who sent what woke it must not pay for one receive's bug.
            logger.exception("receive failed group=%s topic=%s", self.asked.group, self.asked.topic)
            self._answer(
                Popped(error=PocketMQError("the receive failed: the broker's log has why"))
            )
            return True
        if taken.deliveries or taken.buried:
            self._answer(Popped(deliveries=taken.deliveries, filtered_only=not taken.deliveries))
            return True
        if taken.more:
            self._is_looking_on = True
            self._server.look_on(self)
        return False

    def on_deadline(self) -> None:
        self._answer(Popped())

    def look_on(self) -> bool:
        """Look on; return whether that was still asked for."""
        self._is_looking_on = False
        return self._waits.try_again(self)

    def end(self) -> None:
        """Answer with nothing, if it waits."""
        if self.waiting is not None and self.waiting.cancel():
            self.on_deadline()

    def cancel(self) -> None:
        """Let it go without an answer."""
        if self.waiting is not None and self.waiting.cancel():
            self._waits.over(self)

    def _answer(self, popped: Popped) -> None:
        self._waits.over(self)
        self._done(popped)


class PopWaits:
    """Receives that wait in PURGATORY, by the instants of NOW_MS: the machine's."""

    def __init__(
        self, config: BrokerConfig, purgatory: Purgatory, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._purgatory = purgatory
        self._now_ms = now_ms
        #: The groups whose receives of a topic wait.
        self._waiting: dict[str, set[tuple[str, str]]] = {}
        self._of_client: dict[str, dict[Receive, None]] = {}

    def watch(self, receive: Receive) -> None:
        """Have RECEIVE wait; raise Overloaded if too many do."""
        asked = receive.asked
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit}: use fewer consumers, or raise"
                " broker.fetches_waiting_max",
                field="fetches_waiting_max",
                limit=limit,
            )
        wait_ms = min(asked.wait_ms, self._config.fetch_wait_max_ms)
        deadline_ms = end_of_wait(self._now_ms(), wait_ms)
        key = (asked.group, asked.topic)
        receive.waiting = self._purgatory.watch(receive, key, deadline_ms)
        self._waiting.setdefault(asked.topic, set()).add(key)
        self._of_client.setdefault(asked.client_id, {})[receive] = None

    def is_waiting(self, key: tuple[str, str]) -> bool:
        """Does a receive of KEY, (group, topic), wait?"""
        return self._purgatory.is_watched(key)

    def try_again(self, receive: Receive) -> bool:
        """Have RECEIVE try again; return whether it was still there."""
        if receive.waiting is None:
            return False
        was_there = self._purgatory.try_again(receive.waiting)
        # While it looked on, nobody behind it was asked.
        self.wake((receive.asked.group, receive.asked.topic))
        return was_there

    def over(self, receive: Receive) -> None:
        """Hear that RECEIVE, which may have waited, is over."""
        client_id = receive.asked.client_id
        owned = self._of_client.get(client_id)
        if owned is None or receive not in owned:
            return
        del owned[receive]
        if not owned:
            del self._of_client[client_id]

    def end_of(self, client_id: str) -> None:
        """End what CLIENT_ID waits for, with nothing."""
        for receive in list(self._of_client.get(client_id, ())):
            receive.end()

    def arrived(self, topic: str) -> None:
        """Hear that messages of TOPIC were stored: who waits for them tries again."""
        if topic.startswith(RETRY_PREFIX):
            self._wake_group(topic.removeprefix(RETRY_PREFIX))
        for key in list(self._waiting.get(topic, ())):
            self.wake(key)

    def _wake_group(self, group: str) -> None:
        for keys in list(self._waiting.values()):
            for key in [key for key in keys if key[0] == group]:
                self.wake(key)

    def wake(self, key: tuple[str, str]) -> None:
        """Let those who wait for something of KEY, (group, topic), try again."""
        if key[1] == retry_topic(key[0]) and key[1] not in self._waiting:
            self._wake_group(key[0])
            return
        self._purgatory.notify_in_turn(key)
        waiting = self._waiting.get(key[1])
        if waiting is not None and not self._purgatory.is_watched(key):
            waiting.discard(key)
            if not waiting:
                del self._waiting[key[1]]
