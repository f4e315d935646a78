"""Compiles the tree of an SQL filter into closures, with three truth values: true, false and unknown (None).

A closure is called with a row: the values of the properties in the filter, in that order, None for a property that the
message does not have. A message matches when the filter is true. No value of a property makes a closure raise.

Evaluation follows Apache RocketMQ. Properties are strings, and are converted to the type they are compared with:

    with a number         a decimal number, or else unknown
    with TRUE, FALSE      true if it is "true" in any case, or else false
    =, <> with a string   letter by letter
    <, <=, >, >= of two   both numbers, or else unknown

NULL on the left of = or of an order is unknown, on the right of = it is not equal, on both sides it is equal. One
difference: if a property is not a number, or has a fraction and is compared with an integer, Apache RocketMQ fails and
drops the message. Here only that comparison is unknown, or the numbers are compared.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from . import sql_tree
from .sql_parser import parse
from .sql_tree import Node

Value: TypeAlias = str | int | float | bool | None
Truth: TypeAlias = bool | None
#: The values of a filter's properties in one message.
Row: TypeAlias = Sequence[str | None]

_Term: TypeAlias = Callable[[Row], Value]
_Test: TypeAlias = Callable[[Row], Truth]

#: Size of the cache of compiled filters.
CACHED_MAX: Final = 100
#: Characters of a property that is converted to a number.
NUMBER_LENGTH_MAX: Final = 64

#: Longer values are searched with an algorithm whose time is linear in their length. The time of `in` may grow with
#: the product of both lengths.
_SHORT: Final = 100
_TRUE_LENGTH: Final = len("true")

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class SqlFilter:
    """A compiled filter: `names` are the properties it reads, `matches` evaluates rows of their values."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        compiling = _Compiling()
        test = compiling.test(tree)
        self.names: tuple[str, ...] = tuple(compiling.places)
        #: The cost of an evaluation: tests per message, and those among them that search a complete value.
        self.tests = compiling.tests
        self.searches = compiling.searches
        self._test = test

    def evaluate(self, row: Row) -> Truth:
        """Return whether ROW is true, false or unknown; ROW has the values of `names`, in their order."""
        return self._test(row)

    def matches(self, rows: Sequence[Row]) -> list[bool]:
        """Return for each of ROWS whether it is true."""
        test = self._test
        return [test(row) is True for row in rows]


@lru_cache(CACHED_MAX)
def compiled(expression: str) -> SqlFilter:
    """Return the compiled filter of EXPRESSION; the last CACHED_MAX are cached. Raises InvalidFilter."""
    return SqlFilter(parse(expression))


def number_of(text: str) -> int | float | None:
    """Return the decimal number in TEXT, which may have spaces around it; None: TEXT is no number, or too long."""
    if len(text) > NUMBER_LENGTH_MAX:
        return None
    if text.isdigit() and text.isascii():
        return int(text)
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def equal(left: Value, right: Value) -> Truth:
    """Return whether LEFT = RIGHT."""
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if isinstance(left, str):
        return _equals_text(left, right)
    if isinstance(right, str):
        return _equals_text(right, left)
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _equals_text(text: str, other: str | int | float | bool) -> Truth:
    if isinstance(other, str):
        return text == other
    if isinstance(other, bool):
        return (len(text) == _TRUE_LENGTH and text.lower() == "true") == other
    number = number_of(text)
    return None if number is None else number == other


def _ordinal(value: Value) -> int | float | None:
    """Return VALUE as a number for an order comparison."""
    return number_of(value) if isinstance(value, str) else value


class _Compiling:
    """Creates closures; `places` has the properties met so far, each with its index in a row."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.tests = self.searches = 0

    def _place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))

    def test(self, node: Node) -> _Test:
        """Return a closure that evaluates NODE as a condition."""
        self.tests += 1
        match node:
            case sql_tree.Not(operand):
                return _negated(self.test(operand))
            case sql_tree.And(terms):
                return _all_of([self.test(term) for term in terms])
            case sql_tree.Or(terms):
                return _any_of([self.test(term) for term in terms])
            case sql_tree.Equal(left, right, negated):
                found = self._equal(left, right)
                return _negated(found) if negated else found
            case sql_tree.IsNull(operand, negated):
                term = self.term(operand)
                return lambda row: (term(row) is None) != negated
            case sql_tree.Constant(value):
                assert value is None or isinstance(value, bool), "the parser refuses other values"
                return lambda _: value
            case sql_tree.Property(name):
                place = self._place(name)
                return lambda row: None if row[place] is None else False
            case _:
                return self._comparison(node)

    def _comparison(self, node: Node) -> _Test:
        match node:
            case sql_tree.Order(symbol, left, right):
                return self._order(symbol, left, right)
            case sql_tree.Between(operand, low, high, True):
                tests = [self._order("<", operand, low), self._order(">", operand, high)]
                return _any_of(tests)
            case sql_tree.Between(operand, low, high):
                tests = [self._order(">=", operand, low), self._order("<=", operand, high)]
                return _all_of(tests)
            case sql_tree.In(name, values, negated):
                place, wanted = self._place(name), frozenset(values)
                return lambda row: (
                    None if (text := row[place]) is None else (text in wanted) != negated
                )
            case sql_tree.Search(kind, operand, text, negated):
                self.searches += kind == "CONTAINS"
                return _search(kind, self.term(operand), text, negated)
            case _:
                raise AssertionError(f"{node} is no condition, and the parser refuses such nodes")

    def term(self, node: Node) -> _Term:
        """Return a closure that evaluates NODE as a value."""
        match node:
            case sql_tree.Constant(value):
                return lambda _: value
            case sql_tree.Property(name):
                return operator.itemgetter(self._place(name))
            case sql_tree.Negative(operand):
                return _opposite(self.term(operand))
            case _:
                return self.test(node)

    def _equal(self, left: Node, right: Node) -> _Test:
        match left, right:
            case sql_tree.Property(name), sql_tree.Constant(str(wanted)):
                place = self._place(name)
                return lambda row: None if (text := row[place]) is None else text == wanted
            case _:
                one, other = self.term(left), self.term(right)
                return lambda row: equal(one(row), other(row))

    def _order(self, symbol: str, left: Node, right: Node) -> _Test:
        holds = _ORDERS[symbol]
        one, other = self.term(left), self.term(right)

        def test(row: Row) -> Truth:
            low, high = _ordinal(one(row)), _ordinal(other(row))
            return None if low is None or high is None else holds(low, high)

        return test


def _opposite(term: _Term) -> _Term:
    def opposite(row: Row) -> Value:
        value = term(row)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -value

    return opposite


def _negated(test: _Test) -> _Test:
    def negated(row: Row) -> Truth:
        found = test(row)
        return None if found is None else not found

    return negated


def _all_of(tests: Sequence[_Test]) -> _Test:
    def all_of(row: Row) -> Truth:
        result: Truth = True
        for test in tests:
            found = test(row)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return all_of


def _any_of(tests: Sequence[_Test]) -> _Test:
    def any_of(row: Row) -> Truth:
        result: Truth = False
        for test in tests:
            found = test(row)
            if found:
                return True
            if found is None:
                result = None
        return result

    return any_of


def _contains(text: str) -> Callable[[str], bool]:
    search: Callable[[str], object] | None = None

    def contains(value: str) -> bool:
        nonlocal search
        if len(value) <= _SHORT:
            return text in value
        if search is None:
            search = re.compile(re.escape(text)).search
        return search(value) is not None

    return contains


_HOLDS: Final[dict[str, Callable[[str], Callable[[str], bool]]]] = {
    "CONTAINS": _contains,
    "STARTSWITH": lambda text: lambda value: value.startswith(text),
    "ENDSWITH": lambda text: lambda value: value.endswith(text),
}


def _search(kind: str, term: _Term, text: str, negated: bool) -> _Test:
    """As in Apache RocketMQ, a search for an empty text is never true, also negated; only strings contain text."""
    if not text:
        return lambda _: False
    holds = _HOLDS[kind](text)

    def search(row: Row) -> Truth:
        value = term(row)
        return isinstance(value, str) and holds(value) != negated

    return search
