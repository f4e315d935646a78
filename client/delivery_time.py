"""Converts delays and delivery times of an application to milliseconds. It reads no clock.

A *delay* counts from the time at which the broker accepts the message, by the clock of the broker. A *delivery time* is
an absolute time. Fractions of a millisecond are rounded up, so that no message is delivered early. The broker decides
whether a delivery time is in the past or too far in the future.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ..proto.errors import InvalidArgument, InvalidDelay
from ..proto.time_text import parse_duration

#: A hundred years: longer than any broker stores a message.
DELAY_MAX_MS: Final = 100 * 365 * 86_400_000
#: Unix milliseconds of 1973 and of the year 9999. Numbers outside have another unit.
INSTANT_MIN_MS: Final = 10**11
INSTANT_MAX_MS: Final = 253_402_300_799_999
#: More than the delay levels of any broker.
DELAY_LEVEL_MAX: Final = 64
#: The number of delay levels of a broker by default. A level above the last one is the last one.
DELAY_LEVELS_DEFAULT: Final = 18

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_HINT = "use timedelta(…) or text like '90s', '2h30m'"


def checked_level(level: int) -> int:
    """Return LEVEL if it is valid. A broker has 18 delay levels by default. Raises InvalidArgument."""
    if type(level) is not int:
        raise InvalidArgument(
            f"delay_level is {level!r}: it must be a number from 1 on. Write delay=… for a length of time.",
            field="delay_level",
            value=level,
        )
    if not 1 <= level <= DELAY_LEVEL_MAX:
        raise InvalidArgument(
            f"delay_level is {level}: it must be 1 to {DELAY_LEVEL_MAX} (brokers have {DELAY_LEVELS_DEFAULT} levels by"
            " default). Write delay=… for a length of time.",
            field="delay_level",
            limit=DELAY_LEVEL_MAX,
            value=level,
        )
    return level


def delay_in_ms(delay: timedelta | str) -> int:
    """Return the milliseconds of DELAY, at least 1.

    Raises InvalidArgument for another type and for text that is not a length of time, InvalidDelay for a delay of 0 or
    less, and for more than DELAY_MAX_MS.
    """
    if isinstance(delay, timedelta):
        delay_ms = _ms_rounded_up(delay)
    elif isinstance(delay, str):
        delay_ms = parse_duration(delay, field="delay")
    else:
        raise InvalidArgument(
            f"delay is {delay!r} without a unit: {_HINT}", field="delay", value=delay
        )
    if delay_ms <= 0:
        raise InvalidDelay(
            f"delay is {delay}: it must be positive. Omit it to deliver the message at once.",
            field="delay",
            limit=1,
            value=delay_ms,
        )
    if delay_ms > DELAY_MAX_MS:
        raise InvalidDelay(
            f"delay is {delay_ms} ms: the limit is {DELAY_MAX_MS} ms (a hundred years), and three days on brokers with"
            " the default settings. Use a shorter delay.",
            field="delay",
            limit=DELAY_MAX_MS,
            value=delay_ms,
        )
    return delay_ms


def instant_in_ms(deliver_at: datetime | int) -> int:
    """Return the Unix milliseconds of DELIVER_AT.

    Raises InvalidArgument for another type, a datetime without a time zone, and a number that counts seconds or
    microseconds.
    """
    if type(deliver_at) is int:
        return _checked_instant(deliver_at)
    if not isinstance(deliver_at, datetime):
        raise InvalidArgument(
            f"deliver_at is {deliver_at!r}: it must be a datetime with a time zone, or Unix milliseconds as an int."
            " Write delay=… for a length of time.",
            field="deliver_at",
            value=deliver_at,
        )
    if deliver_at.utcoffset() is None:
        raise InvalidArgument(
            f"deliver_at is {deliver_at.isoformat()} without a time zone: write deliver_at.astimezone() for local time,"
            " or deliver_at.replace(tzinfo=UTC) for UTC",
            field="deliver_at",
            value=deliver_at.isoformat(),
        )
    return _checked_instant(_ms_rounded_up(deliver_at - _EPOCH))


def _ms_rounded_up(length: timedelta) -> int:
    return -(-(length // _MICROSECOND) // 1000)


def _checked_instant(instant_ms: int) -> int:
    if INSTANT_MIN_MS <= instant_ms <= INSTANT_MAX_MS:
        return instant_ms
    unit = "seconds" if instant_ms < INSTANT_MIN_MS else "micro- or nanoseconds"
    raise InvalidArgument(
        f"deliver_at is {instant_ms}: Unix milliseconds must be {INSTANT_MIN_MS} (1973) to {INSTANT_MAX_MS} (9999)."
        f" Is its unit {unit}?",
        field="deliver_at",
        limit=INSTANT_MIN_MS if instant_ms < INSTANT_MIN_MS else INSTANT_MAX_MS,
        value=instant_ms,
    )
