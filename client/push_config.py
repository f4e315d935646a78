"""The settings of a push consumer: keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from ..proto.errors import ConfigError
from .config import ReadingConfig, ReadingSettings

#: What becomes of a message when a consumer dies in the middle: lost, handled again, or again without effect.
Delivery = Literal["at_most_once", "at_least_once", "effectively_once"]
DELIVERIES: Final = ("at_most_once", "at_least_once", "effectively_once")
#: Bounds of suspend_current_queue_ms.
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000
CONCURRENCY_MAX: Final = 1_000


class PushSettings(ReadingSettings, total=False):
    """The keyword arguments of a push consumer: see PushConfig."""

    ordered: bool
    delivery: Delivery
    listener_batch_size: int
    concurrency: int
    max_reconsume_times: int | None
    consume_timeout_ms: int
    suspend_current_queue_ms: int
    queue_messages_max: int
    queue_max_bytes: int
    offset_span_max: int
    close_timeout_ms: int
    offsets_folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig(ReadingConfig):
    """Settings of a push consumer."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (*ReadingConfig.MAY_BE_ZERO, "max_reconsume_times")

    #: One message of a queue at a time, in the order of the queue; queues next to each other.
    ordered: bool = False
    #: "at_most_once" commits before the listener is called, and retries nothing. "at_least_once" commits what is
    #: finished. "effectively_once" is the same with a listener that remembers what it has done: see Once.
    delivery: Delivery = "at_least_once"
    #: Messages of one call; above 1 the listener gets a list.
    listener_batch_size: int = 1
    #: Calls of the listener at once, at most: threads, or tasks if it is a coroutine function.
    concurrency: int = 20
    #: After so many retries a message goes to the dead letters; 0: there are none. None: as the group is set (16);
    #: in order: without end.
    max_reconsume_times: int | None = None
    #: A message whose listener takes longer is returned, and the listener's outcome ignored. Not in order.
    consume_timeout_ms: int = 900_000
    #: In order: a queue whose message failed waits for so long, then the message is tried again.
    suspend_current_queue_ms: int = 1_000
    #: A queue is not read on while it holds more unfinished messages, or bytes of them, or while they reach over more
    #: queue offsets. What one fetch brings may exceed it.
    queue_messages_max: int = 1_000
    queue_max_bytes: int = 100 * 1024 * 1024
    offset_span_max: int = 2_000
    #: At the end, listeners at work may take so long; what they have not finished comes again.
    close_timeout_ms: int = 30_000
    #: Where the offsets of broadcasting lie; empty: .rocketmq_offsets in the user's home.
    offsets_folder: str = ""

    def __post_init__(self) -> None:
        # slots=True makes a new class, which the short form of super() does not see.
        ReadingConfig.__post_init__(self)
        self._check_bounds()
        if self.delivery not in DELIVERIES:
            raise ConfigError(
                f"delivery is {self.delivery!r}, but must be one of {', '.join(DELIVERIES)}",
                field="delivery",
                value=self.delivery,
            )

    def _check_bounds(self) -> None:
        bounds = {
            "concurrency": (1, CONCURRENCY_MAX),
            "suspend_current_queue_ms": (SUSPEND_MS_MIN, SUSPEND_MS_MAX),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(
                    f"{name} is {value}, but must be {least} to {most}",
                    field=name,
                    limit=least if value < least else most,
                    value=value,
                )
