"""The tokens of an SQL filter.

number      0  17  17L  5.5  5.  .5  5E10      no sign, no leading zeros before an integer
string      'text'; a quote inside is doubled
name        of a property: letters, digits, _ and $, not beginning with a digit; upper and lower case differ
keyword     NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH, in any case
symbol      = <> > >= < <= ( ) , + -
comment     -- to the end of the line, or /* … */
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from ..errors import InvalidFilter

#: Characters of an expression.
EXPRESSION_LENGTH_MAX: Final = 32_768
KEYWORDS: Final = frozenset(
    [
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    ]
)
_INTEGER_MAX: Final = (1 << 63) - 1
#: Characters shown on either side of what is wrong.
_SHOWN: Final = 40

Kind = Literal["number", "string", "name", "keyword", "symbol", "end"]

_WORD = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)
    |(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<integer>(?:0|[1-9]\d*)[lL]?)
    |(?P<string>'(?:''|[^'])*')
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<symbol><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_GLUED = re.compile(r"[A-Za-z0-9_$]", re.ASCII)


class Token(NamedTuple):
    """A word: its KIND, its TEXT (which identifies keywords and symbols), the VALUE of a literal, its position."""

    kind: Kind
    text: str
    value: int | float | str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def invalid(expression: str, at: int, sentence: str) -> InvalidFilter:
    """Return an error about EXPRESSION at position AT, with the text SENTENCE and a line that points there."""
    begin = max(expression.rfind("\n", 0, at) + 1, at - _SHOWN)
    line = expression[begin : at + _SHOWN].partition("\n")[0]
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    return InvalidFilter(
        f"SQL filter, character {at + 1}: {sentence}\n    {shown}\n    {' ' * (at - begin)}^",
        field="expression",
        position=at,
    )


def tokens_of(expression: str) -> Iterator[Token]:
    """Yield the words of EXPRESSION, then one of the kind "end". Raises InvalidFilter."""
    at = 0
    while at < len(expression):
        match = _WORD.match(expression, at)
        if match is None:
            raise invalid(expression, at, _unknown(expression, at))
        if match.lastgroup != "blank":
            yield _token(expression, match)
        at = match.end()
    yield Token("end", "", "", at)


def _unknown(expression: str, at: int) -> str:
    if expression[at] == "'":
        return "the string has no end: a closing quote is missing"
    if expression.startswith("/*", at):
        return "the comment has no end: */ is missing"
    return f"{expression[at]!r} is not allowed in an expression"


def _token(expression: str, match: re.Match[str]) -> Token:
    text, at = match.group(), match.start()
    if match.lastgroup == "string":
        return Token("string", text, text[1:-1].replace("''", "'"), at)
    if match.lastgroup == "symbol":
        return Token("symbol", text, text, at)
    if match.lastgroup == "word":
        keyword = text.upper()
        if keyword in KEYWORDS:
            return Token("keyword", keyword, keyword, at)
        return Token("name", text, text, at)
    if _GLUED.match(expression, match.end()):
        raise invalid(
            expression, at, "a number is followed by a letter or digit that is not part of it"
        )
    return Token("number", text, _number(expression, text, at), at)


def _number(expression: str, text: str, at: int) -> int | float:
    """Return the value of the literal TEXT; it fits a long or double in Java."""
    digits = text.rstrip("lL")
    if digits.isdigit():
        if len(digits) > 19 or int(digits) > _INTEGER_MAX:
            raise invalid(expression, at, f"the number is greater than {_INTEGER_MAX}")
        return int(digits)
    value = float(text)
    if value == float("inf"):
        raise invalid(expression, at, "the number is greater than a double can be")
    return value
