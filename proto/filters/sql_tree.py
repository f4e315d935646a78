"""The tree of an SQL filter, and its conversion to text.

Conditions are operands of AND, OR and NOT; values are operands of comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

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
    """A number with its sign inverted; NULL for any other value, including a property's."""

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
    """Does the operand contain TEXT, or begin or end with it?"""

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
    """Return the text of NODE: keywords in capitals, one space between words, and only the necessary parentheses."""
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
    """Return the text of NODE, in parentheses unless it binds at least as tightly as BINDING."""
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
