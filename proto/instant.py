"""Instants as people read them: "2026-12-24 18:00:00.000Z". Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: The last millisecond of the year 9999; the calendar knows none after it.
_LAST_MS: Final = 253_402_300_799_999


def format_instant(instant_ms: int) -> str:
    """Return INSTANT_MS, Unix milliseconds, in UTC; what is before 1970 or after 9999 as "5 ms"."""
    if not 0 <= instant_ms <= _LAST_MS:
        return f"{instant_ms} ms"
    seconds, ms = divmod(instant_ms, 1000)
    whole = datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)
    return whole.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
