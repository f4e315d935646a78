"""A message whose key and value are not serialized yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Unpack

from .message import Message, MessageParts
from .queue import Queue

#: Stands for a value that was not given; None is a value.
NO_VALUE: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class Draft:
    """VALUE for TOPIC, as the application gave it: what interceptors see of `send(topic, value, …)`.

    Nothing is checked before it becomes a Message.
    """

    topic: str
    value: Any
    key: Any = None
    keys: Iterable[str] = ()
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    delay_level: int = 0
    delay: timedelta | str | None = None
    deliver_at: datetime | int | None = None
    queue: Queue | int | None = None
    sharding_key: str | None = None

    def replace(self, **parts: Unpack[MessageParts]) -> Draft:
        """Return a draft with other PARTS."""
        return replace(self, **parts)

    def message(self, body: bytes, key: str | None) -> Message:
        """Return the message with BODY and KEY. Raises what Message does."""
        return Message(
            self.topic,
            body,
            key=key,
            keys=self.keys,
            tag=self.tag,
            properties=self.properties,
            delay_level=self.delay_level,
            delay=self.delay,
            deliver_at=self.deliver_at,
            queue=self.queue,
            sharding_key=self.sharding_key,
        )
