"""Places in a log as people write them: an offset, or an instant."""

from __future__ import annotations

import re
from typing import Final

from ...proto.errors import InvalidArgument
from ..instants import past_instant_of

#: Unix milliseconds and log offsets are both numbers: an instant has a dash or a colon, or says so.
_OFFSET: Final = re.compile(r"[0-9][0-9_,]*")
_INSTANT_MS: Final = re.compile(r"@([0-9]+)")
_OFFSET_MAX: Final = (1 << 63) - 1


def offset_or_time(text: str) -> tuple[int | None, int | None]:
    """Return (offset, None) or (None, Unix milliseconds) for TEXT; raises InvalidArgument for anything else.

    Digits are an offset, `@` and digits Unix milliseconds, everything else ISO 8601 (without a zone: local time).
    """
    if _OFFSET.fullmatch(text):
        return offset_of(text), None
    if match := _INSTANT_MS.fullmatch(text):
        return None, past_instant_of(match.group(1))
    try:
        return None, past_instant_of(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"{text[:64]!r} is neither an offset (1048576) nor a time (2026-12-24T18:00:00Z, or @ and Unix"
            " milliseconds)",
            value=text[:64],
        ) from None


def offset_of(text: str) -> int:
    """Return the number TEXT, in which `,` and `_` may stand; raises InvalidArgument for anything else."""
    digits = text.replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise InvalidArgument(f"{text[:64]!r} is no offset: write a number", value=text[:64])
    found = int(digits)
    if found > _OFFSET_MAX:
        raise InvalidArgument(f"offset {found} is beyond {_OFFSET_MAX}", value=found)
    return found
