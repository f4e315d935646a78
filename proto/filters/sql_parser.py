"""The parser of SQL filters, from tokens to a tree: a Pratt parser, with RocketMQ's grammar and rules.

    condition   = condition OR condition | condition AND condition                       left to right
    equality    = value (= | <>) value | value IS [NOT] NULL                              binds tighter than AND
    comparison  = value (> | >= | < | <=) value                                           tighter than equality
                | value [NOT] BETWEEN value AND value
                | property [NOT] IN ('a', 'b', …)
                | value [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'text'
    unary       = + value | - value | NOT value                                           tightest of all
    value       = literal | property | ( condition )

NOT binds tighter than comparisons: `NOT a = 1` is `(NOT a) = 1`; write `NOT (a = 1)`, or `a <> 1`. RocketMQ parses
up to the first word that does not fit and ignores the rest. Here that is an error, which shows the position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..errors import InvalidFilter
from .sql_tokens import EXPRESSION_LENGTH_MAX, Token, invalid, tokens_of
from .sql_tree import (
    AND,
    COMPARISON,
    EQUALITY,
    OR,
    UNARY,
    And,
    Between,
    Constant,
    Equal,
    In,
    IsNull,
    Negative,
    Node,
    Not,
    Or,
    Order,
    Property,
    Search,
    is_condition,
    unparse,
)

#: The limit of nested operands, and of comparisons of comparisons, as in `a = b = c`.
DEPTH_MAX: Final = 32
#: Operators of one expression, including values of IN.
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
    """Return the tree of EXPRESSION. Raises InvalidFilter with the position and the reason."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidFilter(
            f"the SQL filter has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}:"
            " filter in the application, or by a more specific property",
            field="expression",
            limit=EXPRESSION_LENGTH_MAX,
            value=len(expression),
        )
    return _Parser(expression).whole()


class _Parser:
    """Parses one EXPRESSION from left to right."""

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

    @property
    def _at_end(self) -> bool:
        return self._next.kind == "end"

    def _take(self) -> Token:
        token = self._next
        self._next = next(self._tokens, token)  # After the end, this is the end token again.
        return token

    def _accept(self, text: str) -> bool:
        """Consume the next word if it is the keyword or symbol TEXT; return whether it was."""
        if self._next.text != text or self._next.kind not in ("keyword", "symbol"):
            return False
        self._take()
        return True

    def _expect(self, text: str, where: str) -> None:
        if not self._accept(text):
            raise self._error(self._next, f"expected {text!r} {where}, found {self._next}")

    def _string(self, where: str) -> str:
        token = self._take()
        if token.kind != "string":
            raise self._error(token, f"expected a 'string' after {where}, found {token}")
        return str(token.value)

    def _error(self, token: Token, sentence: str) -> InvalidFilter:
        return invalid(self._expression, token.at, sentence)

    def _count(self, token: Token) -> None:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise self._error(token, f"there are more than {OPERATORS_MAX} operators and values")

    def _parse(self, binding: int) -> Node:
        """Return the longest expression from here on whose operators bind tighter than BINDING."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(self._next, f"nested more than {DEPTH_MAX} levels deep")
        left = self._prefix(self._take())
        while (found := self._infix_binding()) > binding:
            token = self._take()
            self._count(token)
            if found > AND and isinstance(left, _COMPARISONS):
                self._chained += 1
            if self._chained > DEPTH_MAX:
                raise self._error(token, f"more than {DEPTH_MAX} comparisons of comparisons")
            left = self._infix(left, token, found)
        self._depth -= 1
        return left

    def _infix_binding(self) -> int:
        """Return how tightly the next word binds as an operator between values; 0: it is no such operator."""
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
        raise self._error(token, f"expected a value or a property, found {token}")

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
        self._expect("AND", "between the two limits of BETWEEN")
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
            raise self._error(token, "IN needs a property on its left")
        self._expect("(", "after IN")
        values = [self._string("IN")]
        while self._accept(","):
            self._count(token)
            values.append(self._string("IN"))
        self._expect(")", "after the values of IN")
        return In(operand.name, tuple(values), negated)

    def _search(self, operand: Node, token: Token, negated: bool) -> Node:
        text = self._string(token.text)
        return Search(token.text, operand, text, negated)  # type: ignore[arg-type]  # one of the three

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
