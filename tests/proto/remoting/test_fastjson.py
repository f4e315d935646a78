"""The JSON of bodies: what Apache's broker wrote is read and written again to the byte, and bad text is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.remoting.fastjson import DEPTH_MAX, ObjectMap, dumps, loads

from .recorded_frames import frames

ROUTES = b'{"brokerAddrs":{0:"127.0.0.1:8081",-1:"h:1"},"cluster":"c"}'
OFFSETS = b'{"offsetTable":{{"brokerName":"b","queueId":0}:{"maxOffset":7}},"tps":0.5}'
#: Bodies that are not JSON: records, properties, configuration.
_NO_JSON = {11, 12, 26, 33, 39, 310, 320, 361}
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        | st.lists(
            st.tuples(st.integers() | st.dictionaries(st.just("k"), inner, min_size=1), inner),
            min_size=1,
            max_size=3,
        ).map(ObjectMap)
    ),
    max_leaves=20,
)


def test_keys_may_be_numbers_and_objects() -> None:
    routes, offsets = loads(ROUTES), loads(OFFSETS)

    assert routes["brokerAddrs"] == ObjectMap([(0, "127.0.0.1:8081"), (-1, "h:1")])
    assert offsets["offsetTable"] == [({"brokerName": "b", "queueId": 0}, {"maxOffset": 7})]
    assert (dumps(routes), dumps(offsets)) == (ROUTES, OFFSETS)


def test_bodies_of_apache_are_read_and_written_to_the_byte() -> None:
    bodies = {
        one.body
        for one in frames()
        if one.request_code not in _NO_JSON and one.is_whole and one.body.startswith(b"{")
    }

    assert len(bodies) >= 80
    assert [body for body in bodies if dumps(loads(body)) != body] == []


@given(VALUES)
def test_every_value_survives_a_round(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(VALUES)
def test_standard_json_is_read_as_the_standard_parser_reads_it(value: Any) -> None:
    text = json.dumps(value)

    assert loads(text) == json.loads(text)


@given(VALUES, st.data())
def test_a_changed_text_is_read_or_refused_with_a_sentence(value: Any, data: st.DataObject) -> None:
    text = bytearray(dumps(value))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))

    try:
        loads(bytes(text))
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[", "[1", "[1,", '{"a"', '{"a":', '{"a":1', '{"a":1,', "{1:2", "nul", "1 2", "[1 2]", "{1 2}", "NaN",
        '"a', "-", "[" * (DEPTH_MAX + 2), '{"a":' * (DEPTH_MAX + 2), "{" * 100_000,
    ],
)  # fmt: skip
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        loads(text)


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert loads(b'{"a":"x\\ud800"}') == {"a": "x?"}
