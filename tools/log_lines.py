"""Log lines: one event a line on standard error, its data as key=value.

    2026-11-21T10:38:25.123Z INFO pocketmq.store.commit_log segment rolled file=00000000001073741824 took_ms=3

The message of a log call is a constant; what varies goes in `extra`. Values with spaces are quoted as JSON. Control
characters are escaped, also in files: names come from clients, and people read the file on a terminal. If
several brokers share one standard error, `by=broker-2` at the end of a line says whose it is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final

from ..proto.errors import ConfigError
from ..proto.facts import shown
from .terminal import one_line, printable

#: The name of access/guard.py, which commands without a server do not import.
AUDIT: Final = logging.getLogger("pocketmq.audit")


#: What every record has; anything else came in `extra`.
_ORDINARY: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


class KeyValueFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback below it if there is one; BY: whose all are."""

    def __init__(self, by: str = "") -> None:
        super().__init__()
        self._by = f" by={shown(by)}" if by else ""

    def format(self, record: logging.LogRecord) -> str:
        instant = datetime.fromtimestamp(record.created, UTC)
        stamp = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        extra = (
            f" {name}={shown(value)}"
            for name, value in record.__dict__.items()
            if name not in _ORDINARY
        )
        line = f"{stamp} {record.levelname} {record.name} {record.getMessage()}{''.join(extra)}{self._by}"
        if not record.exc_info:
            return one_line(line)
        return f"{one_line(line)}\n{printable(self.formatException(record.exc_info))}"


LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """Which log lines are written."""

    #: What `pocketmq config set` and SIGHUP change.
    LIVE: ClassVar[frozenset[str]] = frozenset({"level", "levels"})

    #: Lines of this level and above: debug, info, warning or error.
    level: str = "warning"
    #: Other levels of parts: pocketmq.broker, pocketmq.store.scrubber, …
    levels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, level in {"level": self.level, **_by_part(self.levels)}.items():
            if level not in LEVELS:
                raise ConfigError(
                    f"log.{name} is {level!r}: use {', '.join(LEVELS)}", field=name, value=level
                )
        for part in self.levels:
            if part.partition(".")[0] != "pocketmq" or part.startswith(AUDIT.name):
                raise ConfigError(
                    f"log.levels names {part!r}: parts are pocketmq.broker, pocketmq.store and the like; the audit log"
                    " has no levels",
                    field="levels",
                    value=part,
                )


def _by_part(levels: Mapping[str, str]) -> dict[str, str]:
    return {f"levels.{part}": level for part, level in levels.items()}


#: The parts that have levels of their own.
_LEVELLED: Final[set[str]] = set()


def set_levels(config: LogConfig) -> None:
    """Write the lines that CONFIG says, from now on."""
    logging.getLogger().setLevel(config.level.upper())
    for part in _LEVELLED - config.levels.keys():
        logging.getLogger(part).setLevel(logging.NOTSET)
    for part, level in config.levels.items():
        logging.getLogger(part).setLevel(level.upper())
    _LEVELLED.clear()
    _LEVELLED.update(config.levels)


def configure_logging(config: LogConfig, by: str = "") -> None:
    """Send the log lines that CONFIG says to standard error; BY: see above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter(by))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_levels(config)
    audit = logging.StreamHandler(sys.stderr)  # Its lines are JSON, whatever the level of others.
    AUDIT.handlers[:] = [audit]
    AUDIT.propagate = False
    AUDIT.setLevel(logging.WARNING)
