"""The stores that benches read.

    queues     10 M entries in four queues of nine files each; of the log only the last file holds its records
    messages   1 M records of 157 B in three log files, four queues
    lag        the same over 10,000 queues, with three groups at different places in each

All were stopped cleanly. A log file that holds no records reads as zeros, as does one on a device that lost it: readers
of queues never look there, and recovery begins at the last file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .files import write_log, write_queues, write_tables
from .traffic import Traffic

#: Apache's size.
QUEUE_FILE_BYTES: Final = 6_000_000

QUEUES: Final = Traffic(count=10_000_000)
MESSAGES: Final = Traffic(count=1_000_000)
LAG: Final = Traffic(count=1_000_000, topics=100, queues=100)
GROUPS: Final = 3


def queue_store(root: Path, traffic: Traffic = QUEUES) -> Path:
    """Write into ROOT a store for scans of queues; return ROOT."""
    return _write(root, traffic, log_files=1)


def message_store(root: Path, traffic: Traffic = MESSAGES) -> Path:
    """Write into ROOT a store for scans of messages; return ROOT."""
    return _write(root, traffic)


def lag_store(root: Path, traffic: Traffic = LAG) -> Path:
    """Write into ROOT a store with many queues and groups; return ROOT."""
    return _write(root, traffic)


def _write(root: Path, traffic: Traffic, *, log_files: int | None = None) -> Path:
    write_log(root / "commitlog", traffic, files_written=log_files)
    write_queues(root / "consumequeue", traffic, file_bytes=QUEUE_FILE_BYTES)
    write_tables(root, traffic, groups=GROUPS)
    return root
