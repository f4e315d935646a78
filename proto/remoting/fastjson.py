"""The JSON of bodies, as fastjson writes it: JSON, and maps whose keys are numbers or objects, without quotes.

    {"brokerAddrs":{0:"127.0.0.1:8081"}}
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:{"maxOffset":7,"minOffset":0}}}

A map with such keys is an `ObjectMap`, a list of pairs: its keys may be dicts. `loads` reads both, and all that
`json.loads` reads except NaN and Infinity. Errors are ValueError, one sentence.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Nesting beyond this is refused: real bodies have up to 8 levels.
DEPTH_MAX: Final = 64
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder(strict=False)
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: Final = {"true": True, "false": False, "null": None}


class ObjectMap(list[tuple[Any, Any]]):
    """A map whose keys are numbers or objects, as pairs of key and value."""


def loads(data: bytes | str) -> Any:
    """Return the value of DATA; raise ValueError."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    value, at = _value(text, _skip(text, 0), 0)
    at = _skip(text, at)
    if at < len(text):
        raise ValueError(f"text after the value, at character {at}")
    return value


def dumps(value: Any) -> bytes:
    """Return VALUE in UTF-8, compact. Keys of dicts are strings; those of an `ObjectMap` are written without quotes."""
    out: list[str] = []
    _write(value, out)
    return "".join(out).encode("utf-8", "replace")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins at AT, and where it ends."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX} levels")
    head = text[at : at + 1]
    if head == '"':
        found, end = _DECODER.raw_decode(text, at)
        return found.encode(
            "utf-8", "replace"
        ).decode(), end  # It may have half of a surrogate pair.
    if head == "{":
        return _map(text, at + 1, depth + 1)
    if head == "[":
        return _list(text, at + 1, depth + 1)
    found = _NUMBER.match(text, at)
    if found is not None:
        number = found.group()
        return (int(number) if number.lstrip("-").isdecimal() else float(number)), found.end()
    for word, value in _WORDS.items():
        if text.startswith(word, at):
            return value, at + len(word)
    raise ValueError(f"no value at character {at}")


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _skip(text, at)
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        item, at = _value(text, at, depth)
        items.append(item)
        end, at = _end(text, _skip(text, at), "]")
        if end:
            return items, at


def _map(text: str, at: int, depth: int) -> tuple[dict[str, Any] | ObjectMap, int]:
    pairs: list[tuple[Any, Any]] = []
    at = _skip(text, at)
    if text[at : at + 1] == "}":
        return {}, at + 1
    while True:
        key, at = _value(text, at, depth)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"no colon after a key, at character {at}")
        value, at = _value(text, _skip(text, at + 1), depth)
        pairs.append((key, value))
        end, at = _end(text, _skip(text, at), "}")
        if end:
            break
    if all(type(key) is str for key, _ in pairs):
        return dict(pairs), at
    return ObjectMap(pairs), at


def _end(text: str, at: int, bracket: str) -> tuple[bool, int]:
    """Return whether BRACKET is at AT, and where the next value begins, or what follows the bracket."""
    head = text[at : at + 1]
    if head == bracket:
        return True, at + 1
    if head != ",":
        raise ValueError(f"neither a comma nor {bracket} at character {at}")
    return False, _skip(text, at + 1)


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, ObjectMap):
        pairs = iter(value)
    elif isinstance(value, dict):
        pairs = iter(value.items())
    elif isinstance(value, list | tuple):
        out.append("[")
        for at, item in enumerate(value):
            if at:
                out.append(",")
            _write(item, out)
        out.append("]")
        return
    else:
        out.append(json.dumps(value, ensure_ascii=False))
        return
    out.append("{")
    for at, (key, item) in enumerate(pairs):
        if at:
            out.append(",")
        _write(key, out)
        out.append(":")
        _write(item, out)
    out.append("}")
