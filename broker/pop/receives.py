"""Receives: requests and results of pop, and receives that wait.

A receive that waits is an operation of the purgatory, found by group and topic, and by client. The event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...proto.errors import Overloaded, PocketMQError
from ...proto.topics import RETRY_PREFIX, retry_topic
from ..config import BrokerConfig
from ..messages.filters import FilterChoice
from ..timing.purgatory import Purgatory, WatchedOperation, end_of_wait

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveRequest:
    """One receive request. CHOICE is a filter at work (filters.py); None: every message.

    BATCH is the maximum number of messages. Each is invisible to other consumers for INVISIBLE_MS or, with AUTO_RENEW,
    while the client lives. A receive with the ATTEMPT_ID of an earlier one gets its messages again.
    WAIT_MS: how long it waits if there are no messages.
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
    """Properties of the group and the topic that a receive depends on."""

    attempts_max: int
    #: The topic's queues, in the order in which they are scanned.
    queues: Sequence[int]
    #: Whether a new group starts with the oldest message of a queue, or after the newest.
    from_oldest: bool = True


class PoppedMessage(NamedTuple):
    """One delivery. RECORD has all bytes as stored. ATTEMPT counts from 1."""

    record: bytes
    topic: str
    queue: int
    offset: int
    attempt: int
    handle: str
    invisible_ms: int


class TakenMessages(NamedTuple):
    """Result of a scan. `dead_lettered`: number of new dead letters; `more`: whether there is more to scan."""

    deliveries: list[PoppedMessage]
    dead_lettered: int
    more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiveResult:
    """Result of a receive. FILTERED_ONLY: nothing was delivered, because all due messages became dead letters.

    ERROR: nothing was delivered, and why.
    """

    deliveries: Sequence[PoppedMessage] = ()
    filtered_only: bool = False
    error: PocketMQError | None = None


class ReceiveServer(Protocol):
    """Serves receives."""

    def take(self, asked: ReceiveRequest) -> TakenMessages:
        """Deliver the messages that exist for ASKED."""
        ...

    def scan_more(self, receive: Receive) -> None:
        """Let RECEIVE continue to scan in a later turn of the event loop."""
        ...


class Receive:
    """The receive ASKED, served by SERVER, in WAITS. DONE is called with the result, once."""

    __slots__ = ("_done", "_is_scanning", "_server", "_waits", "asked", "waiting")

    def __init__(
        self,
        server: ReceiveServer,
        waits: PopWaits,
        asked: ReceiveRequest,
        done: Callable[[ReceiveResult], None],
    ) -> None:
        self._server = server
        self._waits = waits
        self._done = done
        #: Whether a later turn continues the scan; then no other event does.
        self._is_scanning = False
        self.asked = asked
        self.waiting: WatchedOperation | None = None

    def try_complete(self) -> bool:
        if self._is_scanning:
            return False
        try:
            taken = self._server.take(self.asked)
        except PocketMQError as error:
            self._answer(ReceiveResult(error=error))
            return True
        except Exception:
            # A send may have caused this call: it must not fail because of a bug here.
            logger.exception("receive failed group=%s topic=%s", self.asked.group, self.asked.topic)
            self._answer(
                ReceiveResult(error=PocketMQError("the receive failed, see the log of the broker"))
            )
            return True
        if taken.deliveries or taken.dead_lettered:
            self._answer(
                ReceiveResult(deliveries=taken.deliveries, filtered_only=not taken.deliveries)
            )
            return True
        if taken.more:
            self._is_scanning = True
            self._server.scan_more(self)
        return False

    def on_deadline(self) -> None:
        self._answer(ReceiveResult())

    def scan_more(self) -> bool:
        """Continue to scan; return whether the receive was still waiting."""
        self._is_scanning = False
        return self._waits.try_again(self)

    def end(self) -> None:
        """Answer with no messages, if it waits."""
        if self.waiting is not None and self.waiting.cancel():
            self.on_deadline()

    def cancel(self) -> None:
        """Remove it without an answer."""
        if self.waiting is not None and self.waiting.cancel():
            self._waits.over(self)

    def _answer(self, popped: ReceiveResult) -> None:
        self._waits.over(self)
        self._done(popped)


class PopWaits:
    """Receives that wait in PURGATORY. NOW_MS returns the machine's time."""

    def __init__(
        self, config: BrokerConfig, purgatory: Purgatory, now_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._purgatory = purgatory
        self._now_ms = now_ms
        #: Groups with a waiting receive, by topic.
        self._waiting: dict[str, set[tuple[str, str]]] = {}
        self._of_client: dict[str, dict[Receive, None]] = {}

    def watch(self, receive: Receive) -> None:
        """Let RECEIVE wait; raise Overloaded if too many do."""
        asked = receive.asked
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit} (broker.fetches_waiting_max):"
                " use fewer consumers, or raise the limit",
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
        """Return whether a receive with KEY, (group, topic), waits."""
        return self._purgatory.is_watched(key)

    def try_again(self, receive: Receive) -> bool:
        """Let RECEIVE try again; return whether it was still waiting."""
        if receive.waiting is None:
            return False
        was_there = self._purgatory.try_again(receive.waiting)
        # While it was scanning, receives after it were not tried.
        self.wake((receive.asked.group, receive.asked.topic))
        return was_there

    def over(self, receive: Receive) -> None:
        """Called when RECEIVE, which may have waited, has ended."""
        client_id = receive.asked.client_id
        owned = self._of_client.get(client_id)
        if owned is None or receive not in owned:
            return
        del owned[receive]
        if not owned:
            del self._of_client[client_id]

    def end_of(self, client_id: str) -> None:
        """End all waiting receives of CLIENT_ID, without messages."""
        for receive in list(self._of_client.get(client_id, ())):
            receive.end()

    def arrived(self, topic: str) -> None:
        """Called when messages of TOPIC were stored: waiting receives try again."""
        if topic.startswith(RETRY_PREFIX):
            self._wake_group(topic.removeprefix(RETRY_PREFIX))
        for key in list(self._waiting.get(topic, ())):
            self.wake(key)

    def _wake_group(self, group: str) -> None:
        for keys in list(self._waiting.values()):
            for key in [key for key in keys if key[0] == group]:
                self.wake(key)

    def wake(self, key: tuple[str, str]) -> None:
        """Let the receives that wait for KEY, (group, topic), try again."""
        if key[1] == retry_topic(key[0]) and key[1] not in self._waiting:
            self._wake_group(key[0])
            return
        self._purgatory.notify_in_turn(key)
        waiting = self._waiting.get(key[1])
        if waiting is not None and not self._purgatory.is_watched(key):
            waiting.discard(key)
            if not waiting:
                del self._waiting[key[1]]
