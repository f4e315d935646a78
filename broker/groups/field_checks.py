"""Checks of fields that members of a group send. Each raises InvalidArgument, which names the field."""

from __future__ import annotations

from typing import Final

from ...proto.errors import InvalidArgument

#: Maximum length of the id of a member or an instance, and of the name of a strategy or a rack.
NAME_LENGTH_MAX: Final = 255


def check_name(field: str, value: str) -> str:
    """Return VALUE if it is short enough and printable; it may be empty. Raises InvalidArgument."""
    if len(value) > NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"{field} has {len(value)} characters, the limit is {NAME_LENGTH_MAX}: {value[:40]!r}…",
            field=field,
            limit=NAME_LENGTH_MAX,
            value=len(value),
        )
    if not value.isprintable():
        raise InvalidArgument(
            f"{field} {value[:64]!r} contains unprintable characters: remove them",
            field=field,
            value=repr(value[:64]),
        )
    return value


def check_member(field: str, value: str) -> str:
    """Return VALUE if it is a valid id; raise InvalidArgument."""
    if not value:
        raise InvalidArgument(
            f"{field} is empty: set it to the name of the member", field=field, value=""
        )
    return check_name(field, value)


def check_least(field: str, value: int, least: int) -> int:
    """Return VALUE if it is at least LEAST; raise InvalidArgument."""
    if value < least:
        raise InvalidArgument(
            f"{field} is {value}: must be at least {least}", field=field, limit=least, value=value
        )
    return value


def check_range(field: str, value: int, least: int, most: int) -> int:
    """Return VALUE if it is between LEAST and MOST; raise InvalidArgument."""
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field} is {value}: must be {least} to {most}", field=field, limit=most, value=value
        )
    return value
