"""Log lines: one event a line on standard error, its data as key=value.

    2026-11-21T10:38:25.123Z INFO pocketmq.store.commit_log segment rolled file=00000000001073741824 took_ms=3

The message of a log call is a constant; what varies goes in `extra`. Values with spaces are quoted as JSON.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

from ..proto.facts import shown

#: The name of access/guard.py, which commands without a server do not import.
AUDIT: Final = logging.getLogger("pocketmq.audit")

#: What every record has; anything else came in `extra`.
_ORDINARY: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


class KeyValueFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback below it if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        instant = datetime.fromtimestamp(record.created, UTC)
        stamp = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        extra = (
            f" {name}={shown(value)}"
            for name, value in record.__dict__.items()
            if name not in _ORDINARY
        )
        line = f"{stamp} {record.levelname} {record.name} {record.getMessage()}{''.join(extra)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(level: str) -> None:
    """Send log lines of LEVEL and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    audit = logging.StreamHandler(sys.stderr)  # Its lines are JSON, whatever the level of others.
    AUDIT.handlers[:] = [audit]
    AUDIT.propagate = False
    AUDIT.setLevel(logging.WARNING)
