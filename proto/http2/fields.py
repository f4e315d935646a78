"""A header field of HTTP/2: what it counts, and what is allowed in it. Pure."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

#: A name and a value. A character is a byte (Latin-1); names are ASCII.
Field: TypeAlias = tuple[str, str]

#: What a field counts beside its own bytes, in a table and in a list (RFC 7541, §4.1; RFC 9113, §6.5.2).
FIELD_OVERHEAD_BYTES: Final = 32
#: The size of a dynamic table until a setting changes it (RFC 9113, §6.5.2).
TABLE_BYTES_DEFAULT: Final = 4096

#: A token (RFC 9110, §5.6.2) without upper case.
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_PSEUDO_NAMES: Final = frozenset({":authority", ":method", ":path", ":scheme", ":status"})


def is_legal_name(name: str) -> bool:
    """Return whether NAME is a token in lower case, or a pseudo name that requests or responses have."""
    return _NAME.fullmatch(name) is not None or name in _PSEUDO_NAMES


def is_legal_value(value: str) -> bool:
    """Return whether VALUE has neither NUL, CR nor LF, and no white space around it."""
    return not ("\n" in value or "\r" in value or "\0" in value or value.strip(" \t") != value)


def flaw_of(field: Field) -> str | None:
    """Return what HTTP/2 forbids in FIELD (RFC 9113, §8.2.1), or None."""
    name, value = field
    if not is_legal_name(name):
        what = "no known pseudo name" if name.startswith(":") else "no token in lower case"
        return f"the name {name[:64]!r} is {what}"
    if not is_legal_value(value):
        return f"the value of {name[:64]} has NUL, CR or LF in it, or white space around it"
    return None
