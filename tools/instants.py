"""Instants as people write them on a command line: ISO 8601, with or without a zone, or a time of day alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Final

from ..proto.clock import SystemClock
from ..proto.errors import InvalidArgument
from ..proto.time_text import LAST_MS, check_unix_ms

#: Of a number of Unix milliseconds, long after the year 9999.
_DIGITS_MAX: Final = 16


def local_now() -> datetime:
    """Return the present in this machine's time zone."""
    return datetime.fromtimestamp(SystemClock().unix_ms() / 1000).astimezone()


def instant_of(
    text: str, now: datetime, local: Callable[[datetime], datetime] = datetime.astimezone
) -> datetime:
    """Return the instant that TEXT names; what has no zone is LOCAL time.

    A time of day alone is the next one after NOW, today or tomorrow. Raises InvalidArgument for anything but ISO 8601.
    """
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        return _next_time(text, now, local)
    try:
        return local(named) if named.tzinfo is None else named
    except (
        ValueError,
        OverflowError,
    ):  # Less than a day from the first or last year of the calendar.
        raise _no_time(text) from None


def _next_time(text: str, now: datetime, local: Callable[[datetime], datetime]) -> datetime:
    try:
        of_day = time.fromisoformat(text)
    except ValueError:
        raise _no_time(text) from None
    today = now.date() if of_day.tzinfo is None else now.astimezone(of_day.tzinfo).date()
    found = _at(today, of_day, local)
    return found if found > now else _at(today + timedelta(days=1), of_day, local)


def _no_time(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"--at {text[:64]}: write a time as 2026-12-24T18:00:00, with Z or +01:00 if it is not local time, or as 18:00;"
        " a length of time is --delay 2h",
        field="at",
        value=text[:64],
    )


def _at(day: date, of_day: time, local: Callable[[datetime], datetime]) -> datetime:
    named = datetime.combine(day, of_day)
    return local(named) if named.tzinfo is None else named


def past_instant_of(text: str, local: Callable[[datetime], datetime] = datetime.astimezone) -> int:
    """Return the instant that TEXT names, in Unix milliseconds: ISO 8601 (without a zone: LOCAL time), or these.

    Raises InvalidArgument for anything else, and for a time before 1970 or after 9999.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return _within(check_unix_ms(int(text), "the time"), text)
    try:
        named = datetime.fromisoformat(text)
        instant_ms = round((local(named) if named.tzinfo is None else named).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text[:64]!r} is not a time: write 2026-12-24T18:00:00, with Z or +01:00 if it is not local time, or Unix"
            " milliseconds",
            field="to_time",
            value=text[:64],
        ) from None
    return _within(instant_ms, text)


def _within(instant_ms: int, text: str) -> int:
    if not 0 <= instant_ms <= LAST_MS + 1:  # The end of the last millisecond is the end of a range.
        raise InvalidArgument(
            f"{text[:64]!r} is out of range: times are from 1970 to 9999",
            field="to_time",
            value=text[:64],
        )
    return min(instant_ms, LAST_MS)
