"""The verbs that send, consume and look up, as a user runs them."""

import subprocess
import sys

import pytest

from ..complaint import complaint
from ..served import ServerProcess
from .command import Shell

pytestmark = pytest.mark.processes


def test_what_is_sent_is_consumed_with_everything_that_went_along(call: Shell) -> None:
    call("topic", "create", "Parcels")
    sent = call(
        "send", "Parcels", "größe", "--key", "k1", "--key", "k2", "--tag", "t", "--property", "a=b=c", "--json"
    )  # fmt: skip

    got = call("consume", "Parcels", "--group", "g", "--limit", "1", "--timeout", "10", "--json")

    (receipt,), (message,) = sent.documents, got.documents
    assert (sent.code, got.code) == (0, 0)
    assert (message["body"], message["keys"], message["tag"]) == ("größe", ["k1", "k2"], "t")
    assert message["properties"]["a"] == "b=c"
    for name in (
        "topic",
        "broker",
        "queue",
        "queue_offset",
        "log_offset",
        "message_id",
        "offset_message_id",
    ):
        assert receipt[name] == message[name], name


def test_a_group_does_not_get_a_message_twice(call: Shell) -> None:
    call("topic", "create", "Once")
    call("send", "Once", "one", "two")

    first = call("consume", "Once", "--group", "g", "--limit", "2", "--timeout", "10")
    second = call("consume", "Once", "--group", "g", "--timeout", "0.5")
    other = call("consume", "Once", "--group", "h", "--limit", "2", "--timeout", "10")

    assert sorted(first.out.split()) == ["one", "two"]
    assert (second.code, second.out) == (0, "")
    assert sorted(other.out.split()) == ["one", "two"]


def test_what_the_filter_skipped_is_committed_at_the_end(call: Shell) -> None:
    call("topic", "create", "Skipped", "--queues", "1")
    call("send", "Skipped", "one", "two", "--tag", "other")

    got = call("consume", "Skipped", "--group", "skips", "--tag", "wanted", "--timeout", "5")

    rows = call("lag", "--group", "skips", "--json").documents
    (row,) = [row for row in rows if row.get("topic") == "Skipped"]
    assert (got.code, got.out) == (0, "")
    assert (row["committed_offset"], row["lag"]) == (2, 0)


def test_lines_of_standard_input_are_messages(call: Shell) -> None:
    call("topic", "create", "Lines", "--queues", "1")
    sent = call(
        "send", "Lines", "--stdin", "--json", stdin=b"a b\r\n\n" + b"x" * 100_000 + b"\nlast"
    )

    got = call("consume", "Lines", "--group", "g", "--limit", "3", "--timeout", "10")

    assert len(sent.documents) == 3
    assert got.out.splitlines() == ["a b", "x" * 100_000, "last"]


def test_a_message_or_two_are_sent_without_numpy(call: Shell, server: ServerProcess) -> None:
    program = "import sys; from pocketmq.tools import cli; print(cli.run(sys.argv[1:]), 'numpy' in sys.modules)"
    call("topic", "create", "Light")
    send = ("send", "Light", "one", "two", "--key", "k", "--nameserver", server.nameserver)

    printed = subprocess.check_output([sys.executable, "-c", program, *send], text=True)

    assert printed.splitlines()[-1] == "0 False"


def test_bytes_that_are_no_text_are_shown_in_base64(call: Shell) -> None:
    call("topic", "create", "Bytes")
    call("send", "Bytes", "--stdin", stdin=b"\xff\xfe")

    (message,) = call(
        "consume", "Bytes", "--group", "g", "--limit", "1", "--timeout", "10", "--json"
    ).documents

    assert (message["body"], message["body_base64"]) == (None, "//4=")


def test_fewer_messages_than_wanted_is_exit_code_4(call: Shell) -> None:
    call("topic", "create", "Few")
    call("send", "Few", "one")

    done = call("consume", "Few", "--group", "g", "--limit", "2", "--timeout", "0.5")

    assert (done.code, done.out) == (4, "one\n")
    assert complaint(done.err) == "pocketmq: received 1 of 2 messages; none arrived for 0.5 s"


def test_consuming_a_topic_that_is_not_there_says_so(call: Shell) -> None:
    done = call("consume", "Nowhere", "--group", "g", "--timeout", "1")

    assert done.code == 3
    assert "Nowhere" in done.err


def test_a_message_is_forced_to_the_device_if_asked(call: Shell) -> None:
    call("topic", "create", "Safe")

    (receipt,) = call("send", "Safe", "x", "--disk", "--json").documents

    assert receipt["durability"] == "disk"


def test_messages_are_looked_up_by_key_and_by_either_id(call: Shell) -> None:
    call("topic", "create", "Keyed")
    call("send", "Keyed", "other", "--key", "o-2")
    (receipt,) = call("send", "Keyed", "wanted", "--key", "o-1", "--json").documents

    by_key = call("find", "--topic", "Keyed", "--key", "o-1", "--json")
    by_id = call("find", "--id", receipt["message_id"], "--json")
    by_offset_id = call("find", "--id", receipt["offset_message_id"], "--json")

    place = ("--queue", str(receipt["queue"]), "--offset", str(receipt["queue_offset"]))
    by_offset = call("find", "--topic", "Keyed", *place, "--json")
    by_time = call("find", "--topic", "Keyed", "--since", "2020-01-01", "--limit", "9", "--json")
    stored_ms = receipt["stored_ms"]
    for way in ([], ["--key", "o-1"]):
        words = ["find", "--topic", "Keyed", *way, "--json", "--since", "2020-01-01", "--until"]
        assert "wanted" not in call(*words, str(stored_ms)).out
        assert "wanted" in call(*words, str(stored_ms + 1)).out

    assert sorted(message["body"] for message in by_time.documents) == ["other", "wanted"]
    for done in (by_key, by_id, by_offset_id, by_offset):
        assert done.code == 0
        assert [message["body"] for message in done.documents] == ["wanted"]


def test_a_key_that_nobody_sent_is_not_found(call: Shell) -> None:
    call("topic", "create", "Keyless")

    done = call("find", "--topic", "Keyless", "--key", "none")

    assert done.code == 3
    assert "none" in done.err


def test_find_in_a_topic_that_does_not_exist_says_so(call: Shell) -> None:
    done = call("find", "--topic", "Nowhere", "--key", "k")

    assert done.code == 3
    assert "topic 'Nowhere' does not exist" in done.err
