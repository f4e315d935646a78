"""Remoting commands: the bytes that Apache RocketMQ writes, and everything else refused or the same after a round."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.remoting.command import HEADER_SIZE_MAX, RemotingCommand, decode, encode

JSON = bytes.fromhex("0000008600000082") + (
    b'{"code":105,"extFields":{"topic":"orders"},"flag":0,"language":"PYTHON","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":503}'
)
ROCKETMQ = bytes.fromhex(
    "0000002a010000260069" "0301f7" "000000070000000000000000" "00000011"
    "0005746f706963000000066f7264657273"
)  # fmt: skip
ANSWER = bytes.fromhex(
    "000000240100001e0011" "0301f7" "0000000700000001" "000000096e6f7420666f756e64" "000000007879"
)  # fmt: skip
ASKED = RemotingCommand(code=105, opaque=7, fields={"topic": "orders"}, version=503)


@pytest.mark.parametrize(("frame", "is_json"), [(JSON, True), (ROCKETMQ, False)])
def test_a_request_has_the_bytes_of_apaches_code(frame: bytes, is_json: bool) -> None:
    found = decode(frame[4:])

    assert (found.code, found.opaque, found.version) == (105, 7, 503)
    assert (found.fields, found.language, found.body) == ({"topic": "orders"}, "PYTHON", b"")
    assert (found.is_json, found.wants_answer, found.is_answer) == (is_json, True, False)
    assert encode(found) == frame


def test_an_answer_is_told_from_a_request_and_speaks_its_kind() -> None:
    found = decode(ANSWER[4:])

    assert (found.code, found.remark, found.body, found.is_answer) == (
        17,
        "not found",
        b"xy",
        True,
    )
    assert encode(found) == ANSWER
    made = decode(ROCKETMQ[4:]).answer(b"xy", code=17, remark="not found")
    assert encode(decode(encode(made)[4:])) == encode(made)
    assert (made.is_json, made.opaque, made.wants_answer) == (False, 7, False)


NUMBERS = st.integers(-(2**31), 2**31 - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=NUMBERS,
    flag=NUMBERS,
    remark=WORDS,
    fields=st.dictionaries(WORDS, WORDS, max_size=5),
    body=st.binary(max_size=100),
    version=st.integers(-(2**15), 2**15 - 1),
    language=st.sampled_from(["JAVA", "PYTHON", "NODE_JS"]),
    is_json=st.booleans(),
)


@given(command=COMMANDS)
def test_what_is_written_is_read(command: RemotingCommand) -> None:
    frame = encode(command)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(frame[4:]) == command


@given(frame=st.one_of(st.binary(max_size=80), st.builds(encode, COMMANDS)), data=st.data())
def test_damage_is_an_error_of_one_kind(frame: bytes, data: Any) -> None:
    cut = data.draw(st.integers(0, len(frame)))
    at = data.draw(st.integers(0, max(0, len(frame) - 1)))
    spoilt = bytearray(frame)
    if spoilt:
        spoilt[at] ^= data.draw(st.integers(1, 255))
    for one in (frame[:cut], bytes(spoilt)):
        try:
            decode(one)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "too short for a header length"),
        (struct.pack(">i", 5) + b"{}", "does not fit"),
        (struct.pack(">i", 2 << 24), "of kind 2"),
        (struct.pack(">i", 2) + b"[]", "not a JSON object"),
        (struct.pack(">i", 12) + b'{"code":2e9}', "not a number of 32 bits"),
        (struct.pack(">i", 15) + b'{"extFields":1}', "extFields is not a JSON object"),
    ],
)
def test_what_is_no_command_is_told(frame: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(frame)


def test_a_header_is_limited() -> None:
    header = (HEADER_SIZE_MAX + 1).to_bytes(4)
    with pytest.raises(ValueError, match="the limit is 1,048,576"):
        decode(header + b" " * (HEADER_SIZE_MAX + 1))
    many = RemotingCommand(code=1, fields={str(number): "" for number in range(1_001)})
    assert decode(encode(many)[4:]) == many
    with pytest.raises(ValueError, match="more than 1,000 fields"):
        decode(encode(replace(many, is_json=False))[4:])


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    header = b'{"code":1,"remark":"\\udfff","extFields":{"a":"x\\ud800","b":["\\udc00"],"c":"\\ud83d\\ude00"}}'
    command = decode(len(header).to_bytes(4) + header)

    assert command.remark == "?"
    assert command.fields == {"a": "x?", "b": '["?"]', "c": "😀"}
