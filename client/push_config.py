"""The settings of a push consumer: keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from ..proto.errors import ConfigError
from .config import ReadingConfig, ReadingSettings

#: What happens to a message if its consumer dies while processing it: it is lost, processed again, or processed again
#: without a second effect.
Delivery = Literal["at_most_once", "at_least_once", "effectively_once"]
DELIVERIES: Final = ("at_most_once", "at_least_once", "effectively_once")
#: Limits of suspend_current_queue_ms.
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

    ordered: bool = False
    """One message of a queue at a time, in the order of the queue. Different queues are processed
    in parallel.
    """
    delivery: Delivery = "at_least_once"
    """When offsets are committed: after processing ("at_least_once"), or before ("at_most_once", nothing is retried).

    "effectively_once" is at least once, with a listener that detects duplicates (`Deduplicator`).
    """
    listener_batch_size: int = 1
    """Messages per call of the listener. Above 1 the listener gets a list."""
    concurrency: int = 20
    """Maximum number of parallel calls of the listener: threads, or tasks if it is a coroutine
    function.
    """
    max_reconsume_times: int | None = None
    """Retries before a message goes to the dead-letter queue; 0: none. None: the setting of the group (16), or without
    a limit if `ordered`.
    """
    consume_timeout_ms: int = 900_000
    """A message whose listener takes longer is returned for a retry, and the result of the listener
    is ignored. Not if `ordered`.
    """
    suspend_current_queue_ms: int = 1_000
    """If `ordered`: pause of a queue before its failed message is retried."""
    queue_messages_max: int = 1_000
    """A queue with more unprocessed messages than this is not fetched from. One fetch may exceed it."""
    queue_max_bytes: int = 100 * 1024 * 1024
    """A queue with more bytes of unprocessed messages than this is not fetched from. One fetch may
    exceed it.
    """
    offset_span_max: int = 2_000
    """A queue whose unprocessed messages span more offsets than this is not fetched from."""
    close_timeout_ms: int = 30_000
    """How long `close` waits for running listeners. What they have not finished is redelivered."""
    offsets_folder: str = ""
    """Folder of the offsets of a broadcasting consumer. Empty: `.rocketmq_offsets` in the user's
    home.
    """

    def __post_init__(self) -> None:
        # Not `super()`: slots=True creates a new class, which `super()` does not know.
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
