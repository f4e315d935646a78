"""Which values a setting takes: its type, and the limits that its class itself gives when it refuses a value."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any, Final, Literal

from pocketmq.proto.errors import ConfigError

_FAR: Final = 2**40
_RANGE: Final = re.compile(r"(?:between )?(\d+) (?:to|and) (\d+)")
_LEAST: Final = re.compile(r"at least (\d+)")
_OR_LEAST: Final = re.compile(r"(\d+) \(.*?\) or at least (\d+)")
_MOST: Final = re.compile(r"not exceed (\w+), \d+")
_WORDS: Final = {"int": "integer", "bool": "true, false", "str": "text"}


def number_limits(build: Callable[[int], object]) -> str:
    """Return the limits of a number: BUILD makes an object with it, or raises ConfigError."""
    low, high = _refusal(build, -1), _refusal(build, _FAR)
    if found := _OR_LEAST.search(low):
        return f"{found[1]}, or ≥ {number(int(found[2]))}"
    if found := _RANGE.search(high) or _RANGE.search(low):
        rising = ", rising" if "rise" in low else ""
        return f"{number(int(found[1]))} – {number(int(found[2]))}{rising}"
    if found := _LEAST.search(low):
        least = f"≥ {number(int(found[1]))}"
        most = _MOST.search(high)
        return f"{least}, ≤ `{most[1]}`" if most else least
    raise AssertionError(f"no limits in {low!r}")


def _refusal(build: Callable[[int], object], value: int) -> str:
    try:
        build(value)
    except ConfigError as error:
        return error.message.partition("must ")[2]
    return ""


def number(value: int) -> str:
    """Return VALUE with a comma for each thousand."""
    return f"{value:,}"


def choices(kind: Any) -> str:
    """Return the values of KIND, a Literal; nothing for other types."""
    if typing.get_origin(kind) is not Literal:
        return ""
    return ", ".join(f"`{one or chr(34) * 2}`" for one in typing.get_args(kind))


def type_name(kind: str) -> str:
    """Return what a person calls the type that is written KIND."""
    if kind.startswith("tuple"):
        return "list"
    return _WORDS.get(kind, "mapping" if kind.startswith("dict") else kind)
