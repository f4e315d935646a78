"""When a message is to be delivered, in milliseconds, from what the application gave. Pure: it reads no clock.

A *delay* counts from the moment at which the broker takes the message, by the clock of the broker. An *instant* is an
absolute time. Fractions of a millisecond are rounded up, so that no message is delivered early. The broker decides
whether an instant is past or too far ahead.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ..proto.errors import InvalidArgument, InvalidDelay
from ..proto.time_text import parse_duration

#: A hundred years: longer than any broker keeps a message.
DELAY_MAX_MS: Final = 100 * 365 * 86_400_000
#: Unix milliseconds from here (1973) to there (the year 9999); a number outside counts something else.
INSTANT_MIN_MS: Final = 10**11
INSTANT_MAX_MS: Final = 253_402_300_799_999
#: More than the delay levels of any broker.
DELAY_LEVEL_MAX: Final = 64
#: So many has a broker by default. A message of a level above the last one gets the last one.
DELAY_LEVELS_DEFAULT: Final = 18

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_HINT = "give timedelta(…) or a text like '90s', '2h30m'"


def checked_level(level: int) -> int:
    """Return the delay LEVEL; a broker has as many as it is configured with, 18 by default."""
    if type(level) is not int:
        raise InvalidArgument(
            f"delay_level is {level!r}, but must be a number from 1 on; a length of time is delay=…",
            field="delay_level",
            value=level,
        )
    if not 1 <= level <= DELAY_LEVEL_MAX:
        raise InvalidArgument(
            f"delay_level is {level}, but levels are 1 to {DELAY_LEVEL_MAX}, {DELAY_LEVELS_DEFAULT} of them "
            "unless the broker is set otherwise; a length of time is delay=…",
            field="delay_level",
            limit=DELAY_LEVEL_MAX,
            value=level,
        )
    return level


def delay_in_ms(delay: timedelta | str) -> int:
    """Return the milliseconds of DELAY, at least 1.

    Raises InvalidArgument for another type or a text that is no length of time, InvalidDelay for nothing, less than
    nothing, and more than DELAY_MAX_MS.
    """
    if isinstance(delay, timedelta):
        delay_ms = _ms_rounded_up(delay)
    elif isinstance(delay, str):
        delay_ms = parse_duration(delay, field="delay")
    else:
        raise InvalidArgument(
            f"delay is {delay!r}, which has no unit: {_HINT}", field="delay", value=delay
        )
    if delay_ms <= 0:
        raise InvalidDelay(
            f"delay is {delay}, but must be positive: leave it out to have the message delivered at once",
            field="delay",
            limit=1,
            value=delay_ms,
        )
    if delay_ms > DELAY_MAX_MS:
        raise InvalidDelay(
            f"delay is {delay_ms} ms, the limit is {DELAY_MAX_MS} (a hundred years), and brokers allow three days "
            "unless they are set otherwise",
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
            f"deliver_at is {deliver_at!r}, but must be a datetime with a time zone, or Unix milliseconds as an int;"
            " a length of time is delay=…",
            field="deliver_at",
            value=deliver_at,
        )
    if deliver_at.utcoffset() is None:
        raise InvalidArgument(
            f"deliver_at is {deliver_at.isoformat()} without a time zone: write deliver_at.astimezone() if it is "
            "local time, deliver_at.replace(tzinfo=UTC) if it is UTC",
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
        f"deliver_at is {instant_ms}: Unix milliseconds are {INSTANT_MIN_MS} (1973) to {INSTANT_MAX_MS} (9999);"
        f" does it count {unit}?",
        field="deliver_at",
        limit=INSTANT_MIN_MS if instant_ms < INSTANT_MIN_MS else INSTANT_MAX_MS,
        value=instant_ms,
    )
