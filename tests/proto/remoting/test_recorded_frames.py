"""Recorded frames: our headers have the keys and lengths of Apache's, and decode to what was recorded."""

from __future__ import annotations

from dataclasses import replace

from pocketmq.proto.remoting.command import RemotingCommand, decode, encode

from .recorded_frames import RecordedFrame, frames

#: `opaque` was not recorded: a header has one of these numbers of digits for it.
DIGITS = range(1, 11)


def command_of(frame: RecordedFrame) -> RemotingCommand:
    return RemotingCommand(
        code=frame.code,
        flag=frame.flag,
        version=frame.version,
        language="JAVA",
        remark=frame.remark or "",
        fields=frame.fields or {},
        body=frame.body,
    )


def test_there_are_frames_of_both_clients_and_the_tools() -> None:
    codes = {name: {one.request_code for one in frames() if one.recording == name} for name in
             ("frames49", "frames55", "framesadm")}  # fmt: skip

    assert len(frames()) > 1_000
    assert {11, 12, 14, 15, 29, 34, 35, 36, 37, 38, 40, 41, 42, 105, 310, 320} == codes["frames49"]
    assert codes["frames55"] - codes["frames49"] == {361}
    assert len(codes["framesadm"]) > 50


def test_headers_have_the_length_of_apaches() -> None:
    wrong = []
    for frame in frames():
        command = command_of(frame)
        # Apache writes an empty map or text where we leave it out.
        empty = (b'"extFields":{},' if frame.fields == {} else b"") + (
            b'"remark":"",' if frame.remark == "" else b""
        )
        sizes = set()
        for digits in DIGITS:
            data = encode(replace(command, opaque=10 ** (digits - 1)))
            sizes.add((int.from_bytes(data[4:8]) & 0xFFFFFF) + len(empty))
        if frame.header_size not in sizes:
            wrong.append(frame)

    assert wrong == []


def test_headers_survive_a_round_in_both_kinds() -> None:
    for frame in frames():
        for is_json in (True, False) if frame.code < 1 << 15 else (True,):
            command = replace(command_of(frame), is_json=is_json)
            assert decode(encode(command)[4:]) == command
