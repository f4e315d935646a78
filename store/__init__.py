"""The message store: one directory of files. Synchronous; no asyncio, no network."""

from ..proto.run import Run
from .config import StoreConfig, apply_apache_settings
from .disk import Disk
from .file_sizes import config_of
from .log_writer import Appended
from .message_store import MessageStore
from .os_disk import OsDisk
from .overlay_disk import OverlayDisk
from .slices import Slices
from .timers.entry import TimerBatch
from .timers.slot import TimerRecords, TimerSlot
from .timers.store import TimerStore

__all__ = [
    "MessageStore",
    "StoreConfig",
    "Run",
    "Appended",
    "Slices",
    "TimerStore",
    "TimerBatch",
    "TimerSlot",
    "TimerRecords",
    "Disk",
    "OsDisk",
    "OverlayDisk",
    "config_of",
    "apply_apache_settings",
]
