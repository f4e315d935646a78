"""Receives that wait, by group and topic, and by client."""

from __future__ import annotations

from collections.abc import Callable

from ...proto.errors import Overloaded
from ...proto.topics import RETRY_PREFIX, retry_topic
from ..config import BrokerConfig
from ..waiting import Purgatory, end_of_wait
from .receive import Receive


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
