"""Apache's JSON dialect, held against the files that its broker wrote."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pocketmq.store.format.java_json import Json, parse, render, render_member, render_numbers

from ..recorded import recorded_store

COMPACT = {"timermetrics", "transactionMetrics"}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(st.integers(-(2**31), 2**31), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["basic", "consumption", "delays", "encodings", "transactions"])
def test_what_5_5_0_wrote_renders_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    config = recorded_store(name, tmp_path / "store") / "config"
    files = [path for path in config.iterdir() if path.name not in ("timercheck",)]

    assert len(files) >= 14
    for path in files:
        text = path.read_text("utf-8")
        compact = path.name.removesuffix(".bak") in COMPACT
        assert render(parse(text), pretty=not compact, ascii_only=compact) == text


@given(values, st.booleans(), st.booleans())
def test_a_value_survives_both_layouts(value: Json, pretty: bool, ascii_only: bool) -> None:
    assert parse(render(value, pretty=pretty, ascii_only=ascii_only)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:250,1:251\n}', {0: 250, 1: 251}),
        ('{"0":250}', {"0": 250}),
        ('{-1 : 2}', {-1: 2}),
        ('{"a{1:":"{2:3,","b":{7:[1,2]}}', {"a{1:": "{2:3,", "b": {7: [1, 2]}}),
        ('{"quote\\"1:":1}', {'quote"1:': 1}),
        ('{"a":{"x":{"y":"z"}},"b":{"$ref":"$.a.x"}}', {"a": {"x": {"y": "z"}}, "b": {"y": "z"}}),
        ('{"t":{"a.b":{"c":{}}},"r":{"$ref":"$.t.a.b.c"}}', {"t": {"a.b": {"c": {}}}, "r": {}}),
        ('{"r":{"$ref":"$.missing"}}', {"r": {}}),
        ("[]", []),
    ],
)  # fmt: skip
def test_both_generations_are_read(text: str, value: Json) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a":1',
        '{"a"}',
        "{1}",
        '{"a":NaN}',
        "[" * 100_000,
        "-1e999",
        '{"$ref":"$"}',
        '{"a":"\\q"}',
    ],
)
def test_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize("key", ["\x00", "\x005", "\x00\x00"])
def test_a_quoted_key_that_begins_with_nul_stays_a_text(key: str) -> None:
    assert parse(f'{{"{key}" :1,5:"{key}"}}') == {key: 1, 5: key}
    assert parse(f'{{"\\u0000{key[1:]}":1}}') == {key: 1}


@given(st.text(), st.dictionaries(st.integers(0, 9_999), st.integers(-(2**63), 2**63 - 1)))
def test_a_map_of_numbers_renders_as_any_other(key: str, numbers: dict[int, int]) -> None:
    assert render_numbers(key, numbers, 1) == render_member(key, dict(numbers.items()), 1)


def test_pretty_layout_is_that_of_5_5_0() -> None:
    value: Json = {"m": {0: 1, 1: 2}, "n": [1, 2], "s": ["a", "b"], "e": {}, "l": []}

    expected = (
        '{\n\t"m":{\n\t\t0:1,\n\t\t1:2\n\t},\n\t"n":[1,2],\n\t"s":[\n\t\t"a",\n\t\t"b"\n\t],'
        '\n\t"e":{},\n\t"l":[]\n}'
    )
    assert render(value) == expected


def test_text_beyond_ascii_is_escaped_only_on_request() -> None:
    assert render("标\U0001f600\x01") == '"标\U0001f600\\u0001"'
    assert render("标\U0001f600", ascii_only=True) == '"\\u6807\\ud83d\\ude00"'


def test_half_a_surrogate_pair_can_be_written() -> None:
    text = render({"half": "a\ud800", "whole": "😀"}, pretty=False)

    assert text.encode() == '{"half":"a\\ud800","whole":"😀"}'.encode()
    assert parse(text) == {"half": "a\ud800", "whole": "😀"}
