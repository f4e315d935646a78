"""Checks of fields that members of a group send. Each raises InvalidArgument, which names the field."""

from __future__ import annotations

from typing import Final

from ...proto.errors import InvalidArgument

#: Characters of a member's or an instance's id, of a strategy's or a room's name.
NAME_LENGTH_MAX: Final = 255


def check_name(field: str, value: str) -> str:
    """Return VALUE, which may be empty, if it is not too long and can be printed; raise InvalidArgument."""
    if len(value) > NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"{field} has {len(value)} characters, the limit is {NAME_LENGTH_MAX}: {value[:40]!r}…",
            field=field,
            limit=NAME_LENGTH_MAX,
            value=len(value),
        )
    if not value.isprintable():
        raise InvalidArgument(
            f"{field} {value[:64]!r} holds characters that cannot be printed: leave them out",
            field=field,
            value=repr(value[:64]),
        )
    return value


def check_member(field: str, value: str) -> str:
    """Return VALUE if it is fit for an id; raise InvalidArgument."""
    if not value:
        raise InvalidArgument(f"{field} is empty: give the member a name", field=field, value="")
    return check_name(field, value)


def check_least(field: str, value: int, least: int) -> int:
    """Return VALUE if it is at least LEAST; raise InvalidArgument."""
    if value < least:
        raise InvalidArgument(
            f"{field} is {value}: must be at least {least}", field=field, limit=least, value=value
        )
    return value


def check_range(field: str, value: int, least: int, most: int) -> int:
    """Return VALUE if it lies between LEAST and MOST; raise InvalidArgument."""
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field} is {value}: must be {least} to {most}", field=field, limit=most, value=value
        )
    return value
