"""Times as text: durations ("1h30m"), and points in time ("2026-12-24 18:00:00.000Z")."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from .errors import InvalidArgument

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"([0-9]{1,15})(ms|[dhms])")
_WHOLE = re.compile(r"(?:[0-9]{1,15}(?:ms|[dhms]))+")


def parse_duration(text: str, *, field: str = "duration", max_ms: int | None = None) -> int:
    """Return the milliseconds in TEXT: the sum of whole numbers, each with its unit (d, h, m, s, ms).

    Raises InvalidArgument, with FIELD, for anything else, such as a number without a unit or more than MAX_MS.
    """
    compact = text.replace(" ", "")
    if _WHOLE.fullmatch(compact) is None:
        raise InvalidArgument(
            f"{field}: {text[:64]!r} is not a duration: write 500ms, 30s, 1h30m or 3d",
            field=field,
            value=text[:64],
        )
    found = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(compact))
    if max_ms is not None and found > max_ms:
        raise InvalidArgument(
            f"{field}: {text[:64]!r} is too long: the limit is {format_duration(max_ms)}",
            field=field,
            limit=max_ms,
            value=text[:64],
        )
    return found


def format_duration(duration_ms: int) -> str:
    """Return DURATION_MS (not negative) in the form of `parse_duration`, largest units first: "1h30m", "0ms"."""
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        number, duration_ms = divmod(duration_ms, unit_ms)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0ms"


#: The last millisecond of the year 9999, the last year that `datetime` supports.
LAST_MS: Final = 253_402_300_799_999


def format_instant(instant_ms: int) -> str:
    """Return INSTANT_MS, Unix milliseconds, in UTC; before 1970 or after 9999 as "5 ms"."""
    if not 0 <= instant_ms <= LAST_MS:
        return f"{instant_ms} ms"
    seconds, ms = divmod(instant_ms, 1000)
    whole = datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)
    return whole.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


#: The range of values that look like Unix seconds: 1973 to 5138. As milliseconds they would be before 1973, too.
_SECONDS_MIN: Final = 10**8
_SECONDS_END: Final = 10**11


def check_unix_ms(instant_ms: int, field: str) -> int:
    """Return INSTANT_MS; raise InvalidArgument, with FIELD, for a number that looks like Unix seconds."""
    if _SECONDS_MIN <= instant_ms < _SECONDS_END:
        raise InvalidArgument(
            f"{field} is {instant_ms}, which looks like Unix seconds: write milliseconds, {instant_ms * 1000}",
            field=field,
            value=instant_ms,
        )
    return instant_ms
