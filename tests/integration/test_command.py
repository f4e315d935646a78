"""The verbs as a user runs them: every call a process of its own, against a `pocketmq serve` on free ports."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pocketmq.tools.server_process import ServerProcess

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "pocketmq.tools.cli"]


@dataclass(frozen=True)
class Done:
    """What a call printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def pocketmq(*arguments: str, nameserver: str = "", stdin: bytes = b"") -> Done:
    """Run the command with ARGUMENTS."""
    environment = os.environ | ({"POCKETMQ_NAMESERVER": nameserver} if nameserver else {})
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("command") / "store") as running:
        yield running


Call = Callable[..., Done]


@pytest.fixture
def call(server: ServerProcess) -> Call:
    """The command, pointed at the server by the environment."""

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        return pocketmq(*arguments, nameserver=server.nameserver, stdin=stdin)

    return run


# ---------------------------------------------------------------- topics and groups


def test_a_topic_is_there_for_the_next_call(call: Call) -> None:
    created = call("topic", "create", "Made", "--type", "fifo", "--queues", "3", "--json")

    listed = {topic["name"]: topic for topic in call("topic", "list", "--json").documents}

    assert created.code == 0
    assert listed["Made"] == created.documents[0]
    assert (listed["Made"]["type"], listed["Made"]["write_queues"]) == ("FIFO", 3)


def test_a_topic_that_exists_is_not_created_again(call: Call) -> None:
    call("topic", "create", "Twice")

    again = call("topic", "create", "Twice")

    assert again.code == 5
    assert again.err.startswith("pocketmq: ")
    assert again.err.count("\n") == 1


def test_a_topic_that_may_exist_is_left_as_it_is(call: Call) -> None:
    call("topic", "create", "Perhaps", "--queues", "2")

    (topic,) = call("topic", "create", "Perhaps", "--if-missing", "--json").documents

    assert topic["write_queues"] == 2


def test_a_topic_is_changed_described_and_deleted(call: Call) -> None:
    call("topic", "create", "Changing", "--queues", "2")

    updated = call("topic", "update", "Changing", "--queues", "5", "--permission", "read")
    described = call("topic", "describe", "Changing", "--json").documents[0]
    deleted = call("topic", "delete", "Changing")
    gone = call("topic", "describe", "Changing")

    assert (updated.code, deleted.code, gone.code) == (0, 0, 3)
    assert (described["write_queues"], described["permission"], len(described["queues"])) == (
        5,
        4,
        5,
    )


def test_a_bad_topic_name_is_wrong_usage(call: Call) -> None:
    done = call("topic", "create", "no spaces")

    assert done.code == 2
    assert "no spaces" in done.err


def test_groups_are_created_listed_and_deleted(call: Call) -> None:
    created = call("group", "create", "workers", "--fifo", "--retries", "3", "--json")
    listed = {group["name"]: group for group in call("group", "list", "--json").documents}
    deleted = call("group", "delete", "workers")
    after = [group["name"] for group in call("group", "list", "--json").documents]

    assert (created.code, deleted.code) == (0, 0)
    assert listed["workers"] == created.documents[0]
    assert (listed["workers"]["order"], listed["workers"]["retry_max_times"]) == (True, 3)
    assert "workers" not in after


def test_a_group_that_exists_is_changed(call: Call) -> None:
    call("group", "create", "again", "--retries", "3")

    (group,) = call("group", "create", "again", "--retries", "4", "--json").documents

    assert group["retry_max_times"] == 4


def test_a_group_is_described_and_has_its_offsets_set(call: Call) -> None:
    call("topic", "create", "Behind", "--queues", "2")
    call("send", "Behind", *(f"m{number}" for number in range(6)))
    call("consume", "Behind", "--group", "slow", "--count", "6", "--timeout", "10")

    (before,) = call("group", "describe", "slow", "--interval", "0s", "--json").documents
    preview = call("group", "reset-offset", "slow", "--topic", "Behind", "--to-first", "--dry-run")
    moved = call("group", "reset-offset", "slow", "--topic", "Behind", "--to-first", "--json")
    (after,) = call(
        "group", "describe", "slow", "--topic", "Behind", "--interval", "100ms", "--json"
    ).documents
    shown = call("group", "describe", "slow", "--interval", "0s")

    assert (before["lag"], before["members"], before["subscription_check"]) == (0, [], "refuse")
    assert "would skip 0 messages and gets 6 once more" in preview.out
    assert sum(document["repeated"] for document in moved.documents) == 6
    assert after["lag"] == 6
    assert after["finished_per_s"] == 0
    assert all(queue["oldest_unread_ms"] > 0 for queue in after["queues"] if queue["lag"])
    assert "nobody has joined" in shown.out
    assert "6 messages" in shown.out


def test_what_cannot_be_described_or_set_is_said(call: Call) -> None:
    call("group", "create", "idle", "--subscriptions", "warn")
    call("topic", "create", "Idle", "--queues", "2")
    reset = ["group", "reset-offset", "idle", "--topic", "Idle"]

    assert call("group", "describe", "nobody", "--interval", "0s").code == 3
    assert call("group", "describe", "idle", "--interval", "soon").code == 2
    assert call(*reset).code == 2
    assert call(*reset, "--to-first", "--to-last").code == 2
    assert call(*reset, "--to-time", "once").code == 2
    assert call(*reset, "--to-last", "--queue", "x").code == 2
    assert call(*reset, "--to-last", "--queue", "7").code == 3
    (one,) = call(*reset, "--to-last", "--queue", "broker-a:1", "--json").documents
    assert (one["queue"], one["to"], one["dry_run"]) == (1, 0, False)
    (described,) = call("group", "describe", "idle", "--interval", "0s", "--json").documents
    assert described["subscription_check"] == "warn"


# ---------------------------------------------------------------- messages


def test_what_is_sent_is_consumed_with_everything_that_went_along(call: Call) -> None:
    call("topic", "create", "Parcels")
    sent = call(
        "send", "Parcels", "größe", "--key", "k1", "--key", "k2", "--tag", "t", "--property", "a=b=c", "--json"
    )  # fmt: skip

    got = call("consume", "Parcels", "--group", "g", "--count", "1", "--timeout", "10", "--json")

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


def test_a_group_does_not_get_a_message_twice(call: Call) -> None:
    call("topic", "create", "Once")
    call("send", "Once", "one", "two")

    first = call("consume", "Once", "--group", "g", "--count", "2", "--timeout", "10")
    second = call("consume", "Once", "--group", "g", "--timeout", "0.5")
    other = call("consume", "Once", "--group", "h", "--count", "2", "--timeout", "10")

    assert sorted(first.out.split()) == ["one", "two"]
    assert (second.code, second.out) == (0, "")
    assert sorted(other.out.split()) == ["one", "two"]


def test_lines_of_standard_input_are_messages(call: Call) -> None:
    call("topic", "create", "Lines", "--queues", "1")
    sent = call(
        "send", "Lines", "--stdin", "--json", stdin=b"a b\r\n\n" + b"x" * 100_000 + b"\nlast"
    )

    got = call("consume", "Lines", "--group", "g", "--count", "3", "--timeout", "10")

    assert len(sent.documents) == 3
    assert got.out.splitlines() == ["a b", "x" * 100_000, "last"]


def test_bytes_that_are_no_text_are_shown_in_base64(call: Call) -> None:
    call("topic", "create", "Bytes")
    call("send", "Bytes", "--stdin", stdin=b"\xff\xfe")

    (message,) = call(
        "consume", "Bytes", "--group", "g", "--count", "1", "--timeout", "10", "--json"
    ).documents

    assert (message["body"], message["body_base64"]) == (None, "//4=")


def test_fewer_messages_than_wanted_is_exit_code_4(call: Call) -> None:
    call("topic", "create", "Few")
    call("send", "Few", "one")

    done = call("consume", "Few", "--group", "g", "--count", "2", "--timeout", "0.5")

    assert (done.code, done.out) == (4, "one\n")
    assert done.err == "pocketmq: 1 of 2 messages came; none came for 0.5 s\n"


def test_consuming_a_topic_that_is_not_there_says_so(call: Call) -> None:
    done = call("consume", "Nowhere", "--group", "g", "--timeout", "1")

    assert done.code == 3
    assert "Nowhere" in done.err


def test_a_message_is_forced_to_the_device_if_asked(call: Call) -> None:
    call("topic", "create", "Safe")

    (receipt,) = call("send", "Safe", "x", "--disk", "--json").documents

    assert receipt["durability"] == "disk"


def test_messages_are_looked_up_by_key_and_by_either_id(call: Call) -> None:
    call("topic", "create", "Keyed")
    call("send", "Keyed", "other", "--key", "o-2")
    (receipt,) = call("send", "Keyed", "wanted", "--key", "o-1", "--json").documents

    by_key = call("lookup", "--topic", "Keyed", "--key", "o-1", "--json")
    by_id = call("lookup", "--id", receipt["message_id"], "--json")
    by_offset_id = call("lookup", "--id", receipt["offset_message_id"], "--json")

    place = ("--queue", str(receipt["queue"]), "--offset", str(receipt["queue_offset"]))
    by_offset = call("lookup", "--topic", "Keyed", *place, "--json")
    by_time = call("lookup", "--topic", "Keyed", "--since", "2020-01-01", "--count", "9", "--json")

    assert sorted(message["body"] for message in by_time.documents) == ["other", "wanted"]
    for done in (by_key, by_id, by_offset_id, by_offset):
        assert done.code == 0
        assert [message["body"] for message in done.documents] == ["wanted"]


def test_a_key_that_nobody_sent_is_not_found(call: Call) -> None:
    call("topic", "create", "Keyless")

    done = call("lookup", "--topic", "Keyless", "--key", "none")

    assert done.code == 3
    assert "none" in done.err


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "T"],
        ["send", "T", "body", "--stdin"],
        ["send", "T", "body", "--property", "x"],
        ["send", "T", "body", "--key", "two words"],
        ["send", "bad topic", "body"],
        ["consume", "T"],
        ["lookup"],
        ["lookup", "--key", "k"],
        ["topic", "update", "T"],
        ["topic", "create", "T", "--queues", "0"],
        ["send", "T", "body", "--nameserver", "nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("pocketmq: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "T"],
        ["group", "list"],
        ["send", "T", "body"],
        ["consume", "T", "--group", "g", "--timeout", "1"],
        ["lookup", "--id", "01" * 17],
        ["cluster"],
    ],
    ids=" ".join,
)
def test_a_name_server_that_is_not_there_is_exit_code_4(arguments: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        done = pocketmq(*arguments, "--nameserver", address)

    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("pocketmq: ")
    assert address in done.err
    assert done.err.count("\n") == 1


def test_the_option_wins_over_the_environment(server: ServerProcess) -> None:
    done = pocketmq(
        "cluster", "--nameserver", server.nameserver, "--json", nameserver="127.0.0.1:1"
    )

    assert done.code == 0
    assert done.documents[0]["address"] == server.ready["broker"]


def test_a_reader_that_goes_away_ends_the_command_quietly(
    call: Call, server: ServerProcess
) -> None:
    call("topic", "create", "Pipe")
    call("send", "Pipe", "--stdin", stdin=b"x" * 100 + b"\n" + b"y" * 100_000 + b"\n")
    environment = os.environ | {"POCKETMQ_NAMESERVER": server.nameserver}
    command = [*COMMAND, "consume", "Pipe", "--group", "g", "--timeout", "10", "--json"]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (141, b"")


def test_ctrl_c_ends_a_waiting_consumer_quietly(call: Call, server: ServerProcess) -> None:
    call("topic", "create", "Endless")
    call("send", "Endless", "one")
    environment = os.environ | {"POCKETMQ_NAMESERVER": server.nameserver}
    command = [*COMMAND, "consume", "Endless", "--group", "g"]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert call("consume", "Endless", "--group", "g", "--timeout", "0.5").out == ""


# ---------------------------------------------------------------- serving


def test_a_clean_stop_leaves_no_abort_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        assert (store / "abort").exists()
        assert pocketmq("send", "T", "kept", nameserver=server.nameserver).code == 0
        code = server.stop()

    with ServerProcess(store) as again:
        got = pocketmq(
            "consume",
            "T",
            "--group",
            "g",
            "--count",
            "1",
            "--timeout",
            "10",
            nameserver=again.nameserver,
        )
        assert again.ready["recovery"]["clean"] is True

    assert (code, got.out) == (0, "kept\n")
    assert not (store / "abort").exists()


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        sent = pocketmq(
            "send", "T", "--stdin", nameserver=server.nameserver, stdin=b"line\n" * 1000
        )
        server.kill()

    with ServerProcess(store) as again:
        got = pocketmq(
            "consume",
            "T",
            "--group",
            "g",
            "--count",
            "1000",
            "--timeout",
            "10",
            nameserver=again.nameserver,
        )
        assert again.ready["recovery"]["clean"] is False

    assert (sent.code, got.code) == (0, 0)
    assert got.out == "line\n" * 1000


def test_a_store_is_not_served_twice(server: ServerProcess) -> None:
    done = pocketmq(
        "serve", "--store", server.ready["store"], "--port", "0", "--nameserver-port", "0"
    )

    assert done.code == 5
    assert server.ready["store"] in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("verb", "which"), [("serve", "nameserver"), ("serve", "broker"), ("nameserver", "nameserver")]
)
def test_a_port_in_use_is_one_line(
    server: ServerProcess, tmp_path: Path, verb: str, which: str
) -> None:
    port = server.ready[which].rpartition(":")[2]
    options = {
        ("serve", "nameserver"): ["--nameserver-port", port, "--port", "0"],
        ("serve", "broker"): ["--nameserver-port", "0", "--port", port],
        ("nameserver", "nameserver"): ["--port", port],
    }[verb, which]
    store = [] if verb == "nameserver" else ["--store", str(tmp_path / "store")]

    done = pocketmq(verb, *options, *store)

    assert done.code == 2
    assert port in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_key_in_the_configuration_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("broker:\n  prot: 1\n")

    done = pocketmq("serve", "--config", str(file))

    assert (done.code, done.out) == (2, "")
    assert done.err == f"pocketmq: {file}:2: broker.prot: no such key; did you mean 'port'?\n"


def test_a_store_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_text("not a folder")

    done = pocketmq("serve", "--store", str(file), "--port", "0", "--nameserver-port", "0")

    assert done.code == 2
    assert done.err.count("\n") == 1


def test_brokers_and_name_servers_run_apart(tmp_path: Path) -> None:
    with (
        ServerProcess(None, "--port", "0", verb="nameserver") as nameserver,
        ServerProcess(
            tmp_path / "store",
            "--port",
            "0",
            "--nameserver",
            nameserver.nameserver,
            "--name",
            "broker-x",
            verb="broker",
        ) as broker,
    ):
        (shown,) = pocketmq("cluster", "--json", nameserver=nameserver.nameserver).documents

        assert (shown["broker_name"], shown["address"]) == ("broker-x", broker.ready["broker"])
        assert shown["writable"] is True


def test_a_configuration_file_is_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        f"nameserver: {{port: 0}}\nbroker: {{port: 0, name: from-file}}\nstore: {{path: {tmp_path}/mq, flush: sync}}\n"
    )

    with ServerProcess(None, "--config", str(file), verb="serve") as server:
        (receipt,) = pocketmq("send", "T", "x", "--json", nameserver=server.nameserver).documents

    assert (receipt["broker"], receipt["durability"]) == ("from-file", "disk")
    assert (tmp_path / "mq" / "commitlog").is_dir()
