"""What SQL filters say of messages: Apache's own cases, the rules at the edges, and a naive evaluator beside."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.filters import sql_tree
from pocketmq.proto.filters.sql_evaluation import (
    CACHED_MAX,
    NUMBER_LENGTH_MAX,
    SqlFilter,
    Truth,
    Value,
    compiled,
    number_of,
)
from pocketmq.proto.filters.sql_parser import parse
from pocketmq.proto.filters.sql_tree import Node, unparse


def evaluated(expression: str, properties: Mapping[str, str]) -> Truth:
    found = compiled(expression)
    return found.evaluate([properties.get(name) for name in found.names])


AND = "a=3 and b<>4 And c>5 AND d<=4"
OR = "a=3 or b<>4 Or c>5 OR d<=4"
ALL_IN_ONE = "a not in ('4', '4', '5') and b between 3 and 10 and c not "

#: Expression, properties, does the message match: the facts of Apache's ExpressionTest for string properties.
APACHE = [
    ("value contains 'x'", {"value": "axb"}, True),
    ("value startswith 'ax'", {"value": "axb"}, True),
    ("value endswith 'xb'", {"value": "axb"}, True),
    ("value not contains 'x'", {"value": "axb"}, False),
    ("value not startswith 'ax'", {"value": "axb"}, False),
    ("value not endswith 'xb'", {"value": "axb"}, False),
    ("value contains 'x'", {"value": "abb"}, False),
    ("value startswith 'x'", {"value": "abb"}, False),
    ("value endswith 'x'", {"value": "abb"}, False),
    ("value not contains 'x'", {"value": "abb"}, True),
    ("value not startswith 'x'", {"value": "abb"}, True),
    ("value not endswith 'x'", {"value": "abb"}, True),
    ("value contains ''", {"value": "axb"}, False),
    ("value startswith ''", {"value": "axb"}, False),
    ("value endswith ''", {"value": "axb"}, False),
    ("value not contains ''", {"value": "axb"}, False),
    ("value not startswith ''", {"value": "axb"}, False),
    ("value not endswith ''", {"value": "axb"}, False),
    ("value contains 'x'", {}, False),
    ("value startswith 'x'", {}, False),
    ("value endswith 'x'", {}, False),
    ("value not contains 'x'", {}, False),
    ("value not startswith 'x'", {}, False),
    ("value not endswith 'x'", {}, False),
    ("'axb' contains 'x'", {}, True),
    ("'axb' startswith 'ax'", {}, True),
    ("'axb' endswith 'xb'", {}, True),
    ("'axb' not contains 'x'", {}, False),
    ("'axb' contains 'u'", {}, False),
    ("'axb' not endswith 'u'", {}, True),
    ("'axb' contains ''", {}, False),
    ("'axb' not contains ''", {}, False),
    ("' ' contains ' '", {}, True),
    ("' ' not endswith ' '", {}, False),
    ("'axb' contains '.'", {}, False),
    ("'axb' not startswith '.'", {}, True),
    ("'s' contains '\\'", {}, False),
    (ALL_IN_ONE + "contains 'axbc'", {"a": "3", "b": "3", "c": "axbdc"}, True),
    (ALL_IN_ONE + "startswith 'axbc'", {"a": "3", "b": "3", "c": "axbdc"}, True),
    (ALL_IN_ONE + "endswith 'axbc'", {"a": "3", "b": "3", "c": "axbdc"}, True),
    ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
    ("a between up and low", {"a": "3.14"}, False),
    ("a between up and low", {"a": "3.14", "up": "up", "low": "low"}, False),
    ("key is not null and key between 0 and 100", {"key": "con"}, False),
    ("a between 0 and 100", {"a": "abc"}, False),
    ("a=b", {"a": "3.14", "b": "3.14"}, True),
    ("a<>b", {"a": "3.14", "b": "3.14"}, False),
    ("a<>b", {"a": "3.14", "b": "3.141"}, True),
    ("a > 3.1E10", {"a": "3.1415E10"}, True),
    ("a > 3.14", {"a": "3.1415"}, True),
    ("a > b", {"a": "10", "b": "20"}, False),
    ("a > b", {"a": "20", "b": "10"}, True),
    ("a is null OR a='hello'", {}, True),
    ("a is null OR a='hello'", {"a": "hello"}, True),
    ("a is null OR a='hello'", {"a": "abc"}, False),
    ("a=TRUE OR b=FALSE", {"a": "true", "b": "false"}, True),
    ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
    ("a is not null and a='hello'", {"a": "hello"}, True),
    ("a is not null and a='hello'", {}, False),
    (AND, {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
    (AND, {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
    (OR, {"a": "3"}, True),
    (OR, {"a": "4", "b": "5"}, True),
    (OR, {"a": "4", "b": "4", "c": "6"}, True),
    (OR, {"a": "4", "b": "4", "c": "3", "d": "2"}, True),
    (OR, {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
    ("a in ('3', '4', '5')", {"a": "3"}, True),
    ("a in ('3', '4', '5')", {"a": "5"}, True),
    ("a in ('3', '4', '5')", {"a": "8"}, False),
    ("a not in ('3', '4', '5')", {"a": "8"}, True),
    ("a not in ('3', '4', '5')", {"a": "4"}, False),
    ("a between 2 and 10", {"a": "2"}, True),
    ("a between 2 and 10", {"a": "10"}, True),
    ("a between 2 and 10", {"a": "1"}, False),
    ("a between 2 and 10", {"a": "11"}, False),
    ("a not between 2 and 10", {"a": "1"}, True),
    ("a not between 2 and 10", {"a": "11"}, True),
    ("a not between 2 and 10", {"a": "2"}, False),
    ("a not between 2 and 10", {"a": "3"}, False),
    ("a is null", {"abc": "2"}, True),
    ("a is null", {"a": "2"}, False),
    ("a is not null", {"a": "2"}, True),
    ("a is not null", {"abc": "2"}, False),
]


@pytest.mark.parametrize(("expression", "properties", "matches"), APACHE)
def test_messages_match_as_apache_says(
    expression: str, properties: dict[str, str], matches: bool
) -> None:
    assert (evaluated(expression, properties) is True) == matches


@pytest.mark.parametrize(
    ("expression", "properties", "truth"),
    [
        # NULL: at the left unknown, at the right not equal, on both sides equal
        ("a = 1", {}, None),
        ("1 = a", {}, False),
        ("1 <> a", {}, True),
        ("a <> 1", {}, None),
        ("a = b", {}, True),
        ("a = b", {"a": "x"}, False),
        ("a = b", {"b": "x"}, None),
        ("a > 1", {}, None),
        ("1 > a", {}, None),
        ("a in ('x')", {}, None),
        ("a not in ('x')", {}, None),
        ("not (a = 1)", {}, None),
        ("(a = 1) is null", {}, True),
        ("(a = 1) is not null", {"a": "1"}, True),
        # unknown joined with the others
        ("a = 1 and TRUE", {}, None),
        ("a = 1 and FALSE", {}, False),
        ("a = 1 or TRUE", {}, True),
        ("a = 1 or FALSE", {}, None),
        ("NULL", {}, None),
        ("TRUE", {}, True),
        # a property is not a condition by itself, and NOT binds to it alone
        ("a", {"a": "true"}, False),
        ("a", {}, None),
        ("not a", {"a": "true"}, True),
        ("not a = 1", {"a": "2"}, False),
        ("not (a = 1)", {"a": "2"}, True),
        # names are case sensitive, and those of the system are names like others
        ("A = 1", {"a": "1"}, None),
        ("TAGS = 't' and KEYS = 'k'", {"TAGS": "t", "KEYS": "k"}, True),
        # what is no number is unknown beside one; numbers are compared as numbers
        ("a > 5", {"a": "x"}, None),
        ("a = 5", {"a": "x"}, None),
        ("a <> 5", {"a": "x"}, None),
        ("a > 5 or b = 1", {"a": "x", "b": "1"}, True),
        ("a > 5", {"a": "5.5"}, True),
        ("a = 5", {"a": "5.0"}, True),
        ("a = 5.0", {"a": "5"}, True),
        ("a = '5'", {"a": "5.0"}, False),
        ("5 = 5.0", {}, True),
        ("a > 2147483647", {"a": "3000000000"}, True),
        ("a = 5", {"a": " +5 "}, True),
        ("a < -4", {"a": "-5"}, True),
        ("a between -2 and - 1", {"a": "-1.5"}, True),
        ("-a = 5", {"a": "-5"}, None),
        ("- 'x' > 5", {}, None),
        ("- (a = 1) is null", {"a": "1"}, True),
        # truth of strings
        ("a = TRUE", {"a": "TrUe"}, True),
        ("a = TRUE", {"a": "yes"}, False),
        ("a = FALSE", {"a": "yes"}, True),
        ("TRUE = a", {"a": "true"}, True),
        ("5 = TRUE", {}, False),
        ("'true' = TRUE", {}, True),
        ("(a = 1) = TRUE", {"a": "1"}, True),
        ("(a = 1) = b", {"a": "1", "b": "true"}, True),
        ("a = 1 = 1", {"a": "1"}, False),
        # only strings hold strings
        ("5 contains '5'", {}, False),
        ("5 not contains '5'", {}, False),
        ("(a = 1) contains 'x'", {"a": "1"}, False),
        ("a not between 1 and 3", {"a": "2"}, False),
        ("a not between 1 and 3", {"a": "4"}, True),
        ("a between 3 and b", {"a": "4"}, None),
        ("a between 3 and b", {"a": "2"}, False),
    ],
)
def test_truth_has_three_values(expression: str, properties: dict[str, str], truth: Truth) -> None:
    assert evaluated(expression, properties) is truth


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-17", -17),
        ("1e3", 1000),
        (".5", 0.5),
        ("5.", 5),
        ("9" * NUMBER_LENGTH_MAX, int("9" * NUMBER_LENGTH_MAX)),
        ("9" * (NUMBER_LENGTH_MAX + 1), None),
        ("1e999", float("inf")),
        ("", None),
        ("1_000", None),
        ("٣", None),
        ("0x10", None),
        ("nan", None),
        ("inf", None),
        ("--1", None),
        ("1 2", None),
        ("5d", None),
    ],
)
def test_only_decimal_numbers_are_numbers(text: str, number: float | None) -> None:
    assert number_of(text) == number


# --- beside a naive evaluator ---------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "TAGS"])
texts = st.sampled_from(["", "x", "xy", "5", "5.0", "-3", "true", "it's", " 5"])
numbers = st.sampled_from([0, 5, 7, 2.5, 5.0])
symbols = st.sampled_from(["<", "<=", ">", ">="])
values = st.builds(sql_tree.Constant, numbers) | st.builds(sql_tree.Property, names)
ordered = values | st.builds(sql_tree.Negative, values)
conditions: st.SearchStrategy[Node] = st.recursive(
    st.builds(sql_tree.Property, names)
    | st.builds(sql_tree.Constant, st.sampled_from([True, False, None]))
    | st.builds(sql_tree.Order, symbols, ordered, ordered)
    | st.builds(sql_tree.Between, ordered, st.just(sql_tree.Constant(0)), ordered, st.booleans())
    | st.builds(sql_tree.In, names, st.lists(texts, min_size=1).map(tuple), st.booleans())
    | st.builds(
        sql_tree.Search,
        st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
        ordered | st.builds(sql_tree.Constant, texts),
        texts,
        st.booleans(),
    ),
    lambda inner: st.one_of(
        st.builds(sql_tree.Not, inner),
        st.lists(inner, min_size=2, max_size=4).map(lambda terms: sql_tree.And(tuple(terms))),
        st.lists(inner, min_size=2, max_size=4).map(lambda terms: sql_tree.Or(tuple(terms))),
        st.builds(
            sql_tree.Equal,
            inner | ordered | st.builds(sql_tree.Constant, texts),
            inner,
            st.booleans(),
        ),
        st.builds(sql_tree.Equal, ordered, ordered, st.booleans()),
        st.builds(sql_tree.IsNull, inner | ordered, st.booleans()),
    ),
    max_leaves=12,
)
odd_texts = texts | st.text(max_size=8) | st.from_regex(r"[-+. ]?\d*[.eE_]?\d*", fullmatch=True)


def naive(node: Node, properties: Mapping[str, str]) -> Value:
    """Evaluate NODE straight from the rules: no closures, no rows, no short cuts."""
    if isinstance(node, sql_tree.Constant):
        return node.value
    if isinstance(node, sql_tree.Property):
        return properties.get(node.name)
    if isinstance(node, sql_tree.Negative):
        value = naive(node.operand, properties)
        return -value if type(value) in (int, float) else None  # type: ignore[operator]
    if isinstance(node, sql_tree.And | sql_tree.Or):
        found = {naive_test(term, properties) for term in node.terms}
        wins = isinstance(node, sql_tree.Or)
        return wins if wins in found else None if None in found else not wins
    return naive_comparison(node, properties)


def naive_test(node: Node, properties: Mapping[str, str]) -> Truth:
    value = naive(node, properties)
    if isinstance(node, sql_tree.Property):
        return None if value is None else False
    assert value is None or isinstance(value, bool)
    return value


def inverted(truth: Truth, really: bool = True) -> Truth:
    return truth if truth is None or not really else not truth


def naive_comparison(node: Node, properties: Mapping[str, str]) -> Truth:
    if isinstance(node, sql_tree.Not):
        return inverted(naive_test(node.operand, properties))
    if isinstance(node, sql_tree.IsNull):
        return (naive(node.operand, properties) is None) != node.negated
    if isinstance(node, sql_tree.Order):
        return naive_order(node.symbol, naive(node.left, properties), naive(node.right, properties))
    if isinstance(node, sql_tree.In):
        text = properties.get(node.name)
        return None if text is None else (text in node.values) != node.negated
    if isinstance(node, sql_tree.Search):
        value = naive(node.operand, properties)
        if not isinstance(value, str) or not node.text:
            return False
        at = {
            "CONTAINS": value.find(node.text) >= 0,
            "STARTSWITH": value[: len(node.text)] == node.text,
            "ENDSWITH": value[-len(node.text) :] == node.text,
        }
        return at[node.kind] != node.negated
    if isinstance(node, sql_tree.Between):
        least, most = (
            sql_tree.Order(symbol, node.operand, bound) for symbol, bound in bounds(node)
        )
        return naive_test(
            (sql_tree.Or if node.negated else sql_tree.And)((least, most)), properties
        )
    assert isinstance(node, sql_tree.Equal)
    left, right = naive(node.left, properties), naive(node.right, properties)
    return inverted(naive_equal(left, right), node.negated)


def bounds(node: sql_tree.Between) -> list[tuple[sql_tree.Symbol, Node]]:
    return (
        [("<", node.low), (">", node.high)]
        if node.negated
        else [(">=", node.low), ("<=", node.high)]
    )


def naive_number(value: Value) -> float | int | None:
    if not isinstance(value, str):
        return value
    text = value.strip()
    plain = text.isascii() and len(value) <= NUMBER_LENGTH_MAX
    if not plain or not set(text) <= set("0123456789+-.eE"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # "1.5" is no int, "1e" is no number at all.
            continue
    return None


def naive_order(symbol: str, left: Value, right: Value) -> Truth:
    one, other = naive_number(left), naive_number(right)
    if one is None or other is None:
        return None
    sign = (one > other) - (one < other)
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[symbol]


def naive_equal(left: Value, right: Value) -> Truth:
    kinds = {type(left), type(right)}
    if left is None and right is not None:
        return None
    if right is None:
        return left is None
    if kinds == {str}:
        return left == right
    if str in kinds and bool in kinds:
        one, other = ((v.lower() == "true" if isinstance(v, str) else v) for v in (left, right))
        return one == other
    if bool in kinds:
        return kinds == {bool} and left == right
    one, other = naive_number(left), naive_number(right)
    return None if one is None or other is None else one == other


@given(conditions, st.dictionaries(names, odd_texts))
def test_closures_say_what_the_rules_say(tree: Node, properties: dict[str, str]) -> None:
    found = SqlFilter(tree)
    row = [properties.get(name) for name in found.names]

    truth = found.evaluate(row)

    assert truth is naive_test(tree, properties)
    assert found.matches([row]) == [truth is True]


@given(conditions, st.dictionaries(names, odd_texts))
def test_what_is_written_reads_as_the_same(tree: Node, properties: dict[str, str]) -> None:
    try:
        read = parse(unparse(tree))
    except (
        InvalidFilter
    ):  # A rule beyond the grammar: NULL is compared, TRUE = 5, or BETWEEN 0 AND less.
        return

    assert parse(unparse(read)) == read
    assert naive_test(read, properties) is naive_test(tree, properties)


def test_compiled_filters_are_kept_up_to_a_bound() -> None:
    compiled.cache_clear()

    first = compiled("a = 1")
    assert compiled("a = 1") is first
    for number in range(CACHED_MAX):
        compiled(f"a = {number}.5")

    assert compiled.cache_info().currsize == CACHED_MAX
    assert compiled("a = 1") is not first


@given(st.text("ab.*[(^$é", min_size=1, max_size=4), st.text("ab.*[(^$é", max_size=200))
def test_a_long_value_is_searched_as_a_short_one_is(wanted: str, rest: str) -> None:
    value = "x" * 101 + rest

    assert evaluated(f"p CONTAINS '{wanted}'", {"p": value}) == (wanted in value)
