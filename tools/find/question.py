"""The options of a look-up, checked."""

from __future__ import annotations

from dataclasses import dataclass

import click

from ...proto.time_text import format_instant
from .search import TIME_MAX_MS, TimeRange

_COUNT: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The options that say what to look for; times are Unix milliseconds, [since, until)."""

    key: str | None = None
    tag: str | None = None
    message_id: str | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    log_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    asked_count: int | None = None
    scan: bool = False

    @property
    def times(self) -> TimeRange:
        """The first and the last millisecond, as indexes of both brokers are asked."""
        end_ms = TIME_MAX_MS if self.until_ms is None else self.until_ms - 1
        return TimeRange(self.since_ms or 0, end_ms)

    @property
    def count(self) -> int:
        """The maximum number of messages; 1 for an offset."""
        return self.asked_count or (1 if self.offset is not None else _COUNT)

    @property
    def details(self) -> dict[str, str]:
        """What was asked for, by name."""
        asked = {
            "key": self.key,
            "tag": self.tag,
            "message_id": self.message_id,
            "queue": self.queue,
            "offset": self.offset,
            "log_offset": self.log_offset,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}

    @property
    def words(self) -> str:
        """What is looked for, as the end of a sentence: "with the key 'k'"."""
        if self.message_id is not None:
            return f"with the id {self.message_id!r}"
        if self.log_offset is not None:
            return f"at log offset {self.log_offset:,}"
        if self.offset is not None:
            return f"at offset {self.offset:,} of queue {self.queue}"
        which = f"with the tag {self.tag!r}" if self.tag is not None else "in this time"
        if self.key is not None:
            which = f"with the key {self.key!r}: keys are whole words, as they were sent"
        since = "" if self.since_ms is None else f", since {format_instant(self.since_ms)}"
        until = "" if self.until_ms is None else f", before {format_instant(self.until_ms)}"
        return which + since + until

    def check(self, *, from_files: bool) -> None:
        """Raise click.UsageError unless exactly one thing is asked for, with all that it needs."""
        ways = [self.key, self.tag, self.message_id, self.offset, self.log_offset]
        if sum(way is not None for way in ways) > 1:
            raise click.UsageError("Give one of --key, --tag, --id, --offset and --log-offset.")
        timed = self.since_ms is not None or self.until_ms is not None
        if all(way is None for way in ways) and not timed:
            raise click.UsageError("Give --key, --tag, --id, --offset, or --since and --until.")
        if self.offset is not None and (self.topic is None or self.queue is None):
            raise click.UsageError("--offset needs --topic and --queue: it counts in one queue.")
        if self.times.end_ms < self.times.begin_ms:
            raise click.UsageError(
                "--until must be later than --since: that time itself is left out."
            )
        if from_files:
            self._check_files()
        else:
            self._check_live()

    def _check_files(self) -> None:
        if not self._is_placed and self.key is None and self.tag is None and self.topic is None:
            raise click.UsageError("--since and --until need --topic.")

    def _check_live(self) -> None:
        if self.log_offset is not None or self.scan:
            raise click.UsageError("--log-offset and --scan read files: give a STORE.")
        if not self._is_placed and self.topic is None:
            what = (
                "--key" if self.key is not None else "--tag" if self.tag is not None else "A time"
            )
            raise click.UsageError(f"{what} needs --topic: keys are indexed by topic.")

    @property
    def _is_placed(self) -> bool:
        return any(way is not None for way in (self.message_id, self.offset, self.log_offset))
