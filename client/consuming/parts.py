"""What the parts of one consumer have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..config import ReadingConfig
from ..session import Session
from .counts import Counts
from .queue_bounds import QueueBounds


@dataclass(slots=True)
class ConsumerParts:
    """The group, the settings, the way to the brokers, the numbers."""

    group: str
    config: ReadingConfig
    session: Session
    counts: Counts = field(default_factory=Counts)
    #: Told that a broker's clock waits until what was just fetched is committed.
    on_clock_waits: list[Callable[[], None]] = field(default_factory=list)
    #: Asks where queues begin and end.
    bounds: QueueBounds = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = QueueBounds(self.session, self.config.request_timeout_ms)
