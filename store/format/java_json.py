"""RocketMQ's dialect of JSON: the text of the files in a store's config folder.

The dialect is JSON plus maps whose keys are bare integers (`{0:250,1:251}`). Two layouts are in use: fastjson 1 (up to
RocketMQ 5.3) writes entries of such maps on one line, fastjson 2 (5.5) one per line. `parse` reads both, with quoted or
bare keys; `render` writes 5.5.0's bytes:

    pretty    one tab per level; a newline after `{`, `[` and `,` and before `}` and `]`; nothing after `:`;
              empty maps and lists are `{}` and `[]`; a list of numbers stays on one line; no newline at the end
    compact   no white space at all

A bare integer key becomes a Python int, a quoted one stays a str: what was parsed renders to the same
bytes. Maps keep the order of the text (in Java, that of its hash tables, which means nothing).
fastjson 1 writes a second reference to one object as `{"$ref":"$.topicConfigTable.X.attributes"}`; `parse`
replaces it by the object.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, cast

#: The result of `parse`: bare integer keys are ints, quoted ones strings.
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str | int, Json] | None"

#: Some editors put this at the start of a text.
BYTE_ORDER_MARK: Final = "\ufeff"
#: A complete string (so that nothing inside it matches), or an integer key.
_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(-?[0-9]+)(?=[ \t\r\n]*:)', re.DOTALL)
#: Marks a bare key while the standard parser reads the text.
_BARE: Final = "\x00"
#: A quoted key that begins with the mark gets another one.
_QUOTED_MARKS: Final = ('"\x00', '"\\u0000')
_IS_KEY: Final = re.compile(r"[ \t\r\n]*:")
_ESCAPES: Final = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
}  # fmt: skip
_ESCAPED: Final = re.compile(
    r'["\\\x00-\x1f\ud800-\udfff]'
)  # Halves of a surrogate pair have no UTF-8.
_ESCAPED_ASCII: Final = re.compile(r'["\\\x00-\x1f]|[^\x00-\x7e]')
_NESTING_MAX: Final = 64
_MEMBERS_A_PIECE: Final = 500


def parse(text: str) -> Json:
    """Return the value of TEXT; raise ValueError, with line and column, where TEXT is not such JSON."""
    quoted = _STRING_OR_BARE_KEY.sub(_quote_bare_key, text.removeprefix(BYTE_ORDER_MARK))
    try:
        value = cast(
            Json,
            json.loads(
                quoted,
                object_pairs_hook=_object,
                strict=False,
                parse_constant=_no_constant,
                parse_float=_finite,
            ),
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {_NESTING_MAX} levels") from None
    return _resolve(value, value, 0)


def parse_object(text: str) -> dict[str | int, Any]:
    """Return the object of TEXT; raises ValueError for anything else."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def render(value: Json, *, pretty: bool = True, ascii_only: bool = False) -> str:
    """Return VALUE as RocketMQ 5.5.0 writes it; ASCII_ONLY escapes all other characters as `\\uXXXX`."""
    out: list[str] = []
    _render(out, value, 0 if pretty else None, _ESCAPED_ASCII if ascii_only else _ESCAPED)
    return "".join(out)


def render_member(key: str, value: Json, level: int) -> str:
    """Return the entry of KEY in a map at LEVEL of a pretty text (0: the document), without separators."""
    out = [_string(key, _ESCAPED) + ":"]
    _render(out, value, level + 1, _ESCAPED)
    return "".join(out)


def render_numbers(key: str, numbers: "Mapping[int, int]", level: int) -> str:
    """Do the same as `render_member` for a map of NUMBERS, ten times as fast: tables of offsets have many."""
    line = "\n" + "\t" * (level + 2)
    items = ",".join([f"{line}{number}:{value}" for number, value in numbers.items()])
    return f"{_string(key, _ESCAPED)}:{{{items}{line[:-1] if items else ''}}}"


def pieces_with_members(
    head: "dict[str | int, Json]", maps: "Mapping[str, Iterable[str]]"
) -> Iterator[str]:
    """Yield the document of HEAD, which must not be empty, pretty, followed by MAPS: by name, their members.

    A member is a result of `render_member` at level 1. Tables may have 100,000 members. The text is returned in pieces,
    so that no step blocks other threads for long.
    """
    yield render(head).removesuffix("\n}")
    for name, members in maps.items():
        yield f",\n\t{_string(name, _ESCAPED)}:{{"
        rest, before = iter(members), "\n\t\t"
        while piece := list(islice(rest, _MEMBERS_A_PIECE)):
            yield before + ",\n\t\t".join(piece)
            before = ",\n\t\t"
        yield "}" if before[0] == "\n" else "\n\t}"
    yield "\n}"


def _quote_bare_key(match: re.Match[str]) -> str:
    text, digits = match.group(0), match.group(1)
    if digits is not None:
        return f'"\\u0000{int(digits)}"'
    if text.startswith(_QUOTED_MARKS) and _IS_KEY.match(match.string, match.end()):
        return f'"\\u0000{text[1:]}'
    return text


def _object(pairs: Sequence[tuple[str, Json]]) -> dict[str | int, Json]:
    return {_key(key) if key.startswith(_BARE) else key: value for key, value in pairs}


def _key(marked: str) -> str | int:
    """Return the key of MARKED, which begins with the mark; a quoted key that begins with it has it twice."""
    text = marked.removeprefix(_BARE)
    return text if text.startswith(_BARE) else int(text)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is larger than the numbers of JSON readers")
    return number


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a value")


def _resolve(value: Json, root: Json, depth: int) -> Json:
    """Return VALUE with each `$ref` replaced by the value that it refers to; a dangling one becomes `{}`."""
    if depth > _NESTING_MAX:
        raise ValueError(f"nested deeper than {_NESTING_MAX} levels")
    if isinstance(value, list):
        return [_resolve(item, root, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    path = value.get("$ref")
    if len(value) == 1 and isinstance(path, str):
        return _resolve(_at(root, path), root, depth + 1)
    return {key: _resolve(item, root, depth + 1) for key, item in value.items()}


def _at(root: Json, path: str) -> Json:
    """Return the value at PATH (`$.a.b`). Names in a path may have dots, so the longest existing name is used."""
    rest, here = path.removeprefix("$").removeprefix("."), root
    while rest:
        if not isinstance(here, dict):
            return {}
        names = [key for key in here if rest == str(key) or rest.startswith(f"{key}.")]
        if not names:
            return {}
        name = max(names, key=lambda key: len(str(key)))
        rest, here = rest[len(str(name)) + 1 :], here[name]
    return here


def _render(out: list[str], value: Json, level: int | None, escaped: re.Pattern[str]) -> None:
    """Append VALUE to OUT; LEVEL is the depth of indentation, None for the compact layout."""
    if isinstance(value, dict):
        pairs = [
            (str(key) if isinstance(key, int) else _string(key, escaped)) + ":" for key in value
        ]
        _container(out, "{}", pairs, list(value.values()), level, escaped)
    elif isinstance(value, str):
        out.append(_string(value, escaped))
    elif isinstance(value, list):
        inline = all(isinstance(item, int | float) for item in value)
        _container(out, "[]", [""] * len(value), value, None if inline else level, escaped)
    else:
        out.append(json.dumps(value))


def _container(
    out: list[str],
    brackets: str,
    heads: Sequence[str],
    items: Sequence[Json],
    level: int | None,
    escaped: re.Pattern[str],
) -> None:
    out.append(brackets[0])
    inner = None if level is None else level + 1
    line = "" if inner is None else "\n" + "\t" * inner
    for index, (head, item) in enumerate(zip(heads, items, strict=True)):
        out.append(("," if index else "") + line + head)
        _render(out, item, inner, escaped)
    if items and level is not None:
        out.append("\n" + "\t" * level)
    out.append(brackets[1])


def _string(text: str, escaped: re.Pattern[str]) -> str:
    return '"' + escaped.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    character = match.group(0)
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
