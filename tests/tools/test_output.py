import pytest

from pocketmq.client.received_message import FetchedRun, ReceivedMessage
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, encode_run
from pocketmq.tools import output


def received(body: bytes, **more: str) -> ReceivedMessage:
    own = {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "01FF", "own": "x=y"}
    properties = encode_properties(own | more)
    records, _ = encode_run(
        "T",
        3,
        [(body, properties)],
        born_timestamp_ms=1_000,
        born_host=Host.parse("127.0.0.1", 5),
    )
    (message,) = FetchedRun("broker-a", records).messages()
    return message


def test_a_message_is_told_whole() -> None:
    assert output.message_document(received("é".encode())) == {
        "topic": "T",
        "broker": "broker-a",
        "queue": 3,
        "queue_offset": 0,
        "log_offset": 0,
        "message_id": "01FF",
        "offset_message_id": "0" * 32,
        "keys": ["a", "b"],
        "tag": "t",
        "sharding_key": None,
        "priority": None,
        "born_ms": 1_000,
        "stored_ms": 0,
        "due_ms": None,
        "reconsume_times": 0,
        "properties": {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "01FF", "own": "x=y"},
        "body": "é",
    }


def test_a_body_that_is_no_text_is_told_in_base64() -> None:
    assert output.body_fields(b"\xff") == {"body": None, "body_base64": "/w=="}


def test_a_message_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_message(received(b"a\xff"))

    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["keys"], lines["tag"], lines["body"]) == ("a b", "t", "a\\xff")
    assert lines["born"] == "1970-01-01 00:00:01.000Z"


def test_a_delayed_message_tells_when_it_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    message = received(b"a", TIMER_OUT_MS="1700000000000", TIMER_DELIVER_MS="1700000000250")

    assert output.message_document(message)["due_ms"] == 1_700_000_000_250
    output.print_message(message)
    assert "due        2023-11-14 22:13:20.250Z" in capsys.readouterr().out


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": "x\ny", "b": ["ä"]})

    assert capsys.readouterr().out == '{"a": "x\\ny", "b": ["ä"]}\n'


def test_columns_are_aligned_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "count"], [["a", 5], ["long-name", 12_345]])

    assert capsys.readouterr().out.splitlines() == [
        "name       count",
        "a              5",
        "long-name  12345",
    ]


def test_a_table_without_rows_is_its_titles(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "count"], [])

    assert capsys.readouterr().out == "name  count\n"


def test_a_priority_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    message = received(b"a", _SYS_MSG_PRIORITY_="3")

    assert output.message_document(message)["priority"] == 3
    output.print_message(message)
    assert "priority   3" in capsys.readouterr().out
