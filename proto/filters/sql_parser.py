"""The parser of SQL filters, from text to tokens to a tree: a Pratt parser, with RocketMQ's grammar and rules.

    number      0  17  17L  5.5  5.  .5  5E10      no sign, no leading zeros before an integer
    string      'text'; a quote inside is doubled
    name        of a property: letters, digits, _ and $, not beginning with a digit; upper and lower case differ
    keyword     NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH, in any case
    symbol      = <> > >= < <= ( ) , + -
    comment     -- to the end of the line, or /* … */

    condition   = condition OR condition | condition AND condition                       left to right
    equality    = value (= | <>) value | value IS [NOT] NULL                              binds tighter than AND
    comparison  = value (> | >= | < | <=) value                                           tighter than equality
                | value [NOT] BETWEEN value AND value
                | property [NOT] IN ('a', 'b', …)
                | value [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'text'
    unary       = + value | - value | NOT value                                           tightest of all
    value       = literal | property | ( condition )

NOT binds tighter than comparisons: `NOT a = 1` is `(NOT a) = 1`; write `NOT (a = 1)`, or `a <> 1`. RocketMQ reads up to
the first word that does not fit and ignores the rest; here that is an error, which shows the position.

In the tree, conditions are operands of AND, OR and NOT; values are operands of comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from ..errors import InvalidFilter

Symbol: TypeAlias = Literal["<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal; None is NULL."""

    value: int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: a string, or NULL where a message has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """A number with the other sign; NULL for anything else, the value of a property too."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """LEFT = RIGHT, or NEGATED, LEFT <> RIGHT."""

    left: Node
    right: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    symbol: Symbol
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    operand: Node
    low: Node
    high: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    name: str
    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """The operand holds TEXT, or begins or ends with it."""

    kind: Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]
    operand: Node
    text: str
    negated: bool = False


Node: TypeAlias = (
    Constant | Property | Negative | Not | And | Or | Equal | IsNull | Order | Between | In | Search
)

#: How tightly each kind binds; a single value binds most.
OR: Final = 1
AND: Final = 2
EQUALITY: Final = 3
COMPARISON: Final = 4
UNARY: Final = 5
ALONE: Final = 6

_TREE_BINDING: Final[dict[type[Node], int]] = {
    Or: OR,
    And: AND,
    Equal: EQUALITY,
    IsNull: EQUALITY,
    Order: COMPARISON,
    Between: COMPARISON,
    In: COMPARISON,
    Search: COMPARISON,
    Not: UNARY,
    Negative: UNARY,
    Constant: ALONE,
    Property: ALONE,
}


def is_condition(node: Node) -> bool:
    """Return whether NODE yields true, false or unknown. A property does not, but may be used as a condition."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negative)


def unparse(node: Node) -> str:
    """Return the text of NODE: keywords in capitals, one blank between words, no more parentheses than are needed."""
    match node:
        case Constant(value):
            return _literal(value)
        case Property(name):
            return name
        case Negative(operand):
            return "- " + _inside(operand, UNARY)
        case Not(operand):
            return "NOT " + _inside(operand, UNARY)
        case And(terms):
            return " AND ".join(_inside(term, EQUALITY) for term in terms)
        case Or(terms):
            return " OR ".join(_inside(term, AND) for term in terms)
        case Equal(left, right, negated):
            symbol = "<>" if negated else "="
            return f"{_inside(left, EQUALITY)} {symbol} {_inside(right, COMPARISON)}"
        case IsNull(operand, negated):
            return f"{_inside(operand, EQUALITY)} IS {'NOT ' * negated}NULL"
        case _:
            return _comparison(node)


def _comparison(node: Order | Between | In | Search) -> str:
    match node:
        case Order(symbol, left, right):
            return f"{_inside(left, COMPARISON)} {symbol} {_inside(right, UNARY)}"
        case Between(operand, low, high, negated):
            bounds = f"{_inside(low, UNARY)} AND {_inside(high, UNARY)}"
            return f"{_inside(operand, COMPARISON)} {'NOT ' * negated}BETWEEN {bounds}"
        case In(name, values, negated):
            return f"{name} {'NOT ' * negated}IN ({', '.join(map(_literal, values))})"
        case Search(kind, operand, text, negated):
            return f"{_inside(operand, COMPARISON)} {'NOT ' * negated}{kind} {_literal(text)}"


def _inside(node: Node, binding: int) -> str:
    """Return the text of NODE where something that binds with BINDING at least is wanted."""
    text = unparse(node)
    return text if _TREE_BINDING[type(node)] >= binding else f"({text})"


def _literal(value: int | float | str | bool | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# ---------------------------------------------------------------- from the text of an SQL filter to its words


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

#: Operands inside each other; and comparisons of what a comparison results in, as in `a = b = c`.
DEPTH_MAX: Final = 32
#: Operators of one expression, the values of IN too.
OPERATORS_MAX: Final = 512

_BINDING: Final = {
    "OR": OR,
    "AND": AND,
    **dict.fromkeys(("=", "<>", "IS"), EQUALITY),
    **dict.fromkeys(
        (">", ">=", "<", "<=", "NOT", "BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"),
        COMPARISON,
    ),
}
_COMPARISONS: Final = (
    Equal,
    IsNull,
    Order,
    Between,
    In,
    Search,
)
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(expression: str) -> Node:
    """Return the tree of EXPRESSION. Raises InvalidFilter, which says where and what is wrong."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidFilter(
            f"the SQL filter has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}:"
            " choose in the application, or by a property that says more",
            field="expression",
            limit=EXPRESSION_LENGTH_MAX,
            value=len(expression),
        )
    return _Parser(expression).whole()


class _Parser:
    """Reads one EXPRESSION from left to right."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokens_of(expression)
        self._next = next(self._tokens)
        self._depth = 0
        self._chained = 0
        self._operators = 0

    def whole(self) -> Node:
        if self._at_end:
            raise self._error(
                self._next, "the expression is empty: to have every message, leave it out"
            )
        first = self._next
        node = self._parse(0)
        if not self._at_end:
            raise self._error(self._next, f"an operator or the end is missing before {self._next}")
        return self._condition(node, first)

    # --- words ---------------------------------------------------------------------------------------------------

    @property
    def _at_end(self) -> bool:
        return self._next.kind == "end"

    def _take(self) -> Token:
        token = self._next
        self._next = next(self._tokens, token)  # After the end, the end token repeats.
        return token

    def _accept(self, text: str) -> bool:
        """Take the next word if it is the keyword or symbol TEXT; return whether it was."""
        if self._next.text != text or self._next.kind not in ("keyword", "symbol"):
            return False
        self._take()
        return True

    def _expect(self, text: str, where: str) -> None:
        if not self._accept(text):
            raise self._error(self._next, f"{text!r} is missing {where}, here is {self._next}")

    def _string(self, where: str) -> str:
        token = self._take()
        if token.kind != "string":
            raise self._error(token, f"{where} needs a 'string', here is {token}")
        return str(token.value)

    def _error(self, token: Token, sentence: str) -> InvalidFilter:
        return invalid(self._expression, token.at, sentence)

    def _count(self, token: Token) -> None:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise self._error(token, f"there are more than {OPERATORS_MAX} operators and values")

    # --- the grammar ---------------------------------------------------------------------------------------------

    def _parse(self, binding: int) -> Node:
        """Return the longest expression from here on whose operators bind tighter than BINDING."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(self._next, f"it is nested more than {DEPTH_MAX} levels deep")
        left = self._prefix(self._take())
        while (found := self._infix_binding()) > binding:
            token = self._take()
            self._count(token)
            if found > AND and isinstance(left, _COMPARISONS):
                self._chained += 1
            if self._chained > DEPTH_MAX:
                raise self._error(token, f"more than {DEPTH_MAX} comparisons are compared again")
            left = self._infix(left, token, found)
        self._depth -= 1
        return left

    def _infix_binding(self) -> int:
        """Return how tightly the next word binds as an operator between values; 0: it is none."""
        if self._next.kind not in ("keyword", "symbol"):
            return 0
        return _BINDING.get(self._next.text, 0)

    def _prefix(self, token: Token) -> Node:
        if token.kind == "name":
            return Property(token.text)
        if token.kind in ("number", "string"):
            return Constant(token.value)
        if token.kind == "keyword" and token.text in _CONSTANTS:
            return Constant(_CONSTANTS[token.text])
        if token.text == "(":
            inside = self._parse(0)
            self._expect(")", f"to the '(' at character {token.at + 1}")
            return inside
        if token.text in ("+", "-", "NOT"):
            return self._unary(token)
        raise self._error(token, f"a value or a property is missing, here is {token}")

    def _unary(self, token: Token) -> Node:
        self._count(token)
        operand = self._parse(UNARY)
        if token.text == "+":
            return operand
        if token.text == "-":
            return Negative(operand)
        return Not(self._condition(operand, token))

    def _infix(self, left: Node, token: Token, binding: int) -> Node:
        if token.text in ("AND", "OR"):
            return self._logic(left, token, binding)
        if token.text == "IS":
            negated = self._accept("NOT")
            self._expect("NULL", "after IS")
            return IsNull(left, negated)
        if token.text in ("=", "<>"):
            return self._equal(left, token)
        if token.text in ("<", "<=", ">", ">="):
            self._check_ordered(left, token)
            right = self._parse(COMPARISON)
            self._check_ordered(right, token)
            return Order(token.text, left, right)  # type: ignore[arg-type]  # one of the four
        if token.text != "NOT":
            return self._named(left, token, negated=False)
        operator = self._take()
        if operator.kind != "keyword" or operator.text not in _NAMED:
            raise self._error(operator, f"NOT between values goes with {', '.join(_NAMED)}")
        return self._named(left, operator, negated=True)

    def _logic(self, left: Node, token: Token, binding: int) -> Node:
        kind = And if token.text == "AND" else Or
        left = self._condition(left, token)
        right = self._condition(self._parse(binding), token)
        before = left.terms if isinstance(left, kind) else (left,)
        return kind((*before, right))

    def _equal(self, left: Node, token: Token) -> Node:
        right = self._parse(EQUALITY)
        for node in (left, right):
            if isinstance(node, Constant) and node.value is None:
                raise self._error(token, "NULL is equal to nothing: write IS NULL or IS NOT NULL")
        constants = isinstance(left, Constant) and isinstance(right, Constant)
        if constants and is_condition(left) and not is_condition(right):
            raise self._error(token, "TRUE or FALSE is never equal to another literal")
        return Equal(left, right, token.text == "<>")

    def _named(self, left: Node, token: Token, *, negated: bool) -> Node:
        return _NAMED[token.text](self, left, token, negated)

    def _between(self, operand: Node, token: Token, negated: bool) -> Node:
        low = self._parse(COMPARISON)
        self._expect("AND", "between the two bounds of BETWEEN")
        high = self._parse(COMPARISON)
        for node in (operand, low, high):
            self._check_ordered(node, token)
        match low, high:
            case Constant(int() | float() as least), Constant(int() | float() as most):
                if least > most and not negated:
                    raise self._error(token, f"nothing is between {least} and {most}")
        return Between(operand, low, high, negated)

    def _in(self, operand: Node, token: Token, negated: bool) -> Node:
        if not isinstance(operand, Property):
            raise self._error(token, "IN is asked of a property only")
        self._expect("(", "after IN")
        values = [self._string("IN")]
        while self._accept(","):
            self._count(token)
            values.append(self._string("IN"))
        self._expect(")", "behind the values of IN")
        return In(operand.name, tuple(values), negated)

    def _search(self, operand: Node, token: Token, negated: bool) -> Node:
        text = self._string(token.text)
        return Search(token.text, operand, text, negated)  # type: ignore[arg-type]  # one of the three

    # --- rules beyond the grammar --------------------------------------------------------------------------------

    def _condition(self, node: Node, token: Token) -> Node:
        if is_condition(node) or isinstance(node, Property):
            return node
        raise self._error(
            token,
            f"{unparse(node)[:40]} is neither true nor false: compare it with something",
        )

    def _check_ordered(self, node: Node, token: Token) -> None:
        """Only numbers and properties are greater or less than others."""
        number = isinstance(node, Constant) and type(node.value) in (int, float)
        if not number and (isinstance(node, Constant) or is_condition(node)):
            raise self._error(
                token,
                f"{token.text} compares numbers and properties, not {unparse(node)[:40]}",
            )


_NAMED: Final[dict[str, Callable[[_Parser, Node, Token, bool], Node]]] = {
    "BETWEEN": _Parser._between,
    "IN": _Parser._in,
    "CONTAINS": _Parser._search,
    "STARTSWITH": _Parser._search,
    "ENDSWITH": _Parser._search,
}


# --- words


class Token(NamedTuple):
    """A word: its KIND, the TEXT that identifies keywords and symbols, the VALUE of a literal, and its position."""

    kind: Kind
    text: str
    value: int | float | str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def invalid(expression: str, at: int, sentence: str) -> InvalidFilter:
    """Return the error that SENTENCE is wrong with EXPRESSION at position AT, with a line that points there."""
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
        return "the string has no end: a quote is missing"
    if expression.startswith("/*", at):
        return "the comment has no end: */ is missing"
    return f"{expression[at]!r} is no part of an expression"


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
        raise invalid(expression, at, "a number ends in what is no part of one")
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
