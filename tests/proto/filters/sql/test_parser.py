"""What an SQL filter means by its grammar, and what is refused, with the place where it is wrong."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from pocketmq.proto.errors import InvalidFilter
from pocketmq.proto.filters.sql_evaluation import SqlFilter
from pocketmq.proto.filters.sql_parser import DEPTH_MAX, OPERATORS_MAX, parse
from pocketmq.proto.filters.sql_tokens import EXPRESSION_LENGTH_MAX
from pocketmq.proto.filters.sql_tree import unparse


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        ("a or b and c", "a OR b AND c"),
        ("(a or b) and c", "(a OR b) AND c"),
        ("((a) or (b or (c)))", "a OR (b OR c)"),
        ("(a and b) and c", "a AND b AND c"),
        ("not a = 1", "NOT a = 1"),
        ("(not a) = 1", "NOT a = 1"),
        ("not (a = 1)", "NOT (a = 1)"),
        ("not not a", "NOT NOT a"),
        ("a = b > 5", "a = b > 5"),
        ("(a = b) is null", "a = b IS NULL"),
        ("a = (b is null)", "a = (b IS NULL)"),
        ("a = (b = c)", "a = (b = c)"),
        ("a > - - 5", "a > - - 5"),
        ("a > +5", "a > 5"),
        ("-a>5", "- a > 5"),
        ("a not between-1 and+1", "a NOT BETWEEN - 1 AND 1"),
        ("a between 1 and 2 and b", "a BETWEEN 1 AND 2 AND b"),
        ("a in('x')", "a IN ('x')"),
        ("(+a) not in ('x' , 'y''z')", "a NOT IN ('x', 'y''z')"),
        ("a = 17L and b = 017.", "a = 17 AND b = 17.0"),
        ("a = .5e1 or a = 5E+0 or a = 5.", "a = 5.0 OR a = 5.0 OR a = 5.0"),
        ("a = 0L", "a = 0"),
        ("tRuE", "TRUE"),
        ("null", "NULL"),
        ("$a_1 contains ''", "$a_1 CONTAINS ''"),
        ("'x' not startswith 'y' contains 'z'", "'x' NOT STARTSWITH 'y' CONTAINS 'z'"),
        ("a /* not * b */ = -- 2\n 1 -- end", "a = 1"),
        ("\ta\f=\r\n1", "a = 1"),
        ("now <> 'é'", "now <> 'é'"),
    ],
)
def test_an_expression_is_read_by_what_binds_tighter(expression: str, plain: str) -> None:
    assert unparse(parse(expression)) == plain


@pytest.mark.parametrize(
    ("expression", "at", "sentence"),
    [
        ("", 0, "is empty"),
        (" -- nothing", 11, "is empty"),
        ("a and between 2 and 10", 6, "expected a value or a property, found 'BETWEEN'"),
        ("a between 10 and 0", 2, "nothing is between 10 and 0"),
        ("a between 1 or 2", 12, "expected 'AND' between the two limits"),
        ("a > 100000000000000000000000", 4, "greater than 9223372036854775807"),
        ("a > -9223372036854775808", 5, "greater than 9223372036854775807"),
        ("a > 1e999", 4, "greater than a double"),
        ("a = 007", 4, "a number is followed by a letter or digit"),
        ("a = 12abc", 4, "a number is followed by a letter or digit"),
        ("a = 1 b", 6, "an operator or the end is missing before 'b'"),
        ("a = 1)", 5, "an operator or the end is missing before ')'"),
        ("(a = 1", 6, "expected ')' to the '(' at character 1, found the end"),
        ("a =", 3, "found the end"),
        ("a = 'x", 4, "a closing quote is missing"),
        ("a /* = 1", 2, "*/ is missing"),
        ("a # 1", 2, "'#' is not allowed"),
        ('a = "x"', 4, "'\"' is not allowed"),
        ("a != 1", 2, "'!' is not allowed"),
        ("a + 1", 2, "before '+'"),
        ("a like 'x%'", 2, "before 'like'"),
        ("a in ()", 6, "expected a 'string' after IN, found ')'"),
        ("a in (1)", 6, "expected a 'string' after IN, found '1'"),
        ("a in ('x'", 9, "expected ')' after the values of IN"),
        ("'a' in ('x')", 4, "IN needs a property on its left"),
        ("a contains x", 11, "expected a 'string' after CONTAINS, found 'x'"),
        ("a not contains ", 15, "expected a 'string' after CONTAINS, found the end"),
        ("a not = 1", 6, "NOT between values goes with BETWEEN, IN"),
        ("a is 1", 5, "expected 'NULL' after IS"),
        ("a = null", 2, "write IS NULL"),
        ("null <> a", 5, "write IS NULL"),
        ("TRUE = 5", 5, "never equal"),
        ("a > 'x'", 2, "> compares numbers and properties, not 'x'"),
        ("a < TRUE", 2, "< compares numbers and properties, not TRUE"),
        ("a between 'b' and 'c'", 2, "compares numbers and properties, not 'b'"),
        ("a not between null and 1", 6, "compares numbers and properties, not NULL"),
        ("a > 1 > 2", 6, "not a > 1"),
        ("5", 0, "5 is neither true nor false"),
        ("-a", 0, "- a is neither true nor false"),
        ("a = 1 and 'x'", 6, "'x' is neither true nor false"),
        ("not 5", 0, "5 is neither true nor false"),
    ],
)
def test_what_is_wrong_is_shown_where_it_is(expression: str, at: int, sentence: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(expression)

    error = caught.value
    assert sentence in error.message
    assert error.details == {"field": "expression", "position": str(at)}
    head, line, caret = error.message.split("\n")
    assert head.startswith(f"SQL filter, character {at + 1}: ")
    assert caret.index("^") - 4 <= len(line)


def test_the_line_that_is_shown_is_the_one_that_is_wrong() -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse("a = 1 AND\n\tb = ? AND\nc = 3")

    assert caught.value.message.split("\n")[1:] == ["     b = ? AND", "         ^"]


def test_of_a_long_line_the_part_around_the_fault_is_shown() -> None:
    expression = "a = 'x' OR " * 50 + "# OR " + "a = 'x' OR " * 50

    with pytest.raises(InvalidFilter) as caught:
        parse(expression)

    _, line, caret = caught.value.message.split("\n")
    assert line[caret.index("^")] == "#"
    assert len(line) < 100


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("a = '" + "x" * EXPRESSION_LENGTH_MAX + "'", "32774 characters, the limit is 32768"),
        ("(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1), "nested more than 32"),
        ("NOT " * (DEPTH_MAX + 1) + "a", "nested more than 32"),
        ("a" + " = a" * (DEPTH_MAX + 2), "more than 32 comparisons"),
        ("a" + " OR a" * (OPERATORS_MAX + 1), "more than 512 operators"),
        ("a IN (" + "'x'," * (OPERATORS_MAX + 1) + "'x')", "more than 512 operators"),
    ],
)
def test_an_expression_has_bounds(expression: str, sentence: str) -> None:
    with pytest.raises(InvalidFilter, match=sentence):
        parse(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a" + " OR a" * OPERATORS_MAX,
        "a" + " = a" * (DEPTH_MAX + 1),
        "(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1),
        "NOT " * (DEPTH_MAX - 1) + "a",
        "(" * 30 + "a" + " CONTAINS 's' = b AND c OR d)" * 30,
        "a OR (b AND (c = (" * 5 + "a" + ")))" * 5,
        " AND ".join(f"a{n} > {n} OR b{n}" for n in range(170)),
    ],
)
def test_the_largest_expressions_are_read_and_evaluated(expression: str) -> None:
    tree = parse(expression)

    found = SqlFilter(tree)

    assert parse(unparse(tree)) == tree
    assert found.evaluate(["x"] * len(found.names)) in (True, False, None)


@given(
    st.text()
    | st.lists(
        st.sampled_from(
            [*"()=<>+-,'ab", "<>", ">=", " ", " 1 ", " 2.5 ", "'x'", "--", "/*", "*/", "\n"]
            + [
                f" {word} "
                for word in ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "NULL", "IS", "CONTAINS"]
            ]
        )
    ).map("".join)
)
@example("a = 'x''")
@example("a -- b")
@example("/*")
def test_any_text_is_an_expression_or_an_invalid_filter(text: str) -> None:
    try:
        tree = parse(text)
    except InvalidFilter as error:
        assert 0 <= int(error.details["position"]) <= len(text)
        return

    assert parse(unparse(tree)) == tree
