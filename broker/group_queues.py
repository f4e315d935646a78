"""Queues of groups as keys of journal tables: group, topic and queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ..store.tables import Durability, JournalTable, JsonValues

logger = logging.getLogger(__name__)

V = TypeVar("V")

#: Group, topic and queue.
GroupQueue: TypeAlias = tuple[str, str, int]
#: Value None: the stored value cannot be read.
GroupQueueTable: TypeAlias = JournalTable[str, GroupQueue, V | None]
#: One scope for all entries, so that their order is the order of the last change over all groups
#: and topics.
ONE_SCOPE: Final = ""
_NUMBER_MAX: Final = (1 << 63) - 1


def group_queue_table(
    number: int, name: str, to_json: Callable[[V], Any], from_json: Callable[[Any], V]
) -> GroupQueueTable[V]:
    """Return the lazy table NUMBER. FROM_JSON raises ValueError, LookupError or TypeError for a malformed value."""
    codec = _Codec(name, to_json, from_json)
    return JournalTable(number, name, codec, Durability.LAZY, needs_log=False)


class _Codec(JsonValues, Generic[V]):
    """Values of the table NAME, encoded as JSON."""

    def __init__(
        self, name: str, to_json: Callable[[V], Any], from_json: Callable[[Any], V]
    ) -> None:
        self._name = name
        self._to_json = to_json
        self._from_json = from_json

    def key(self, key: GroupQueue) -> bytes:
        group, topic, queue = key
        return f"{topic}@{group}@{queue}".encode()

    def value(self, value: V | None) -> bytes:
        return super().value(None if value is None else self._to_json(value))

    def read_key(self, data: bytes) -> GroupQueue:
        topic, _, rest = data.decode().partition("@")
        group, _, queue = rest.rpartition("@")
        return group, topic, int(queue)

    def read_value(self, data: bytes) -> V | None:
        try:
            return self._from_json(super().read_value(data))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("entry of a table not read table=%s reason=%r", self._name, error)
            return None


def number_of(value: Any) -> int:
    """Return VALUE as an integer that replies can carry; raise ValueError or TypeError otherwise."""
    number = int(value)
    if not -_NUMBER_MAX <= number <= _NUMBER_MAX:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number
