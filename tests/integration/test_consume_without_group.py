"""`pocketmq consume` without a group reads from anywhere, and leaves no group behind."""

from __future__ import annotations

import pytest

from pocketmq.proto.time_text import format_instant

from ..served import ServerProcess
from .command import Shell

pytestmark = pytest.mark.processes

TOPIC = "free"
#: For what prints nothing more. What prints messages ends with the last one, however busy the machine is.
ENOUGH = ("--timeout", "0.5")


def ends_with(count: int) -> tuple[str, ...]:
    return ("--limit", str(count), "--timeout", "60") if count else ENOUGH


@pytest.fixture(scope="module", autouse=True)
def _sent(server: ServerProcess) -> None:
    call = Shell(server.nameserver)
    call("topic", "create", TOPIC, "--queues", "1")
    for number in range(3):
        tag = "even" if number % 2 == 0 else "odd"
        call(
            "send", TOPIC, f"body {number}", "--key", f"k{number}", "--key", "all", "--tag", tag,
            "--property", f"n={number}",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        ((), ["body 0", "body 1", "body 2"]),
        (("--from", "earliest"), ["body 0", "body 1", "body 2"]),
        (("--from", "latest"), []),
        (("--from", "1"), ["body 1", "body 2"]),
        (("--from", "99"), []),
        (("--from", "2020-01-01"), ["body 0", "body 1", "body 2"]),
        (("--tag", "odd"), ["body 1"]),
        (("--sql", "n >= 1 AND TAGS = 'even'"), ["body 2"]),
        (("--key", "k1"), ["body 1"]),
        (("--key", "k1", "--key", "k2"), ["body 1", "body 2"]),
        (("--key", "nothing"), []),
        (("--limit", "2"), ["body 0", "body 1"]),
        (("--limit", "1", "--tag", "odd"), ["body 1"]),
    ],
)
def test_where_it_starts_and_what_it_prints(
    call: Shell, arguments: tuple[str, ...], bodies: list[str]
) -> None:
    done = call("consume", TOPIC, *arguments, *ends_with(len(bodies)))

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == bodies
    assert [row["name"] for row in call.done("group", "list") if row["name"] != "keyed"] == []
    assert [row for row in call.done("lag") if row.get("group") not in (None, "keyed")] == []


def test_a_time_is_the_instant_of_storing(call: Shell) -> None:
    stored = call.done("find", "--topic", TOPIC, "--key", "k2")[0]["stored_ms"]

    for time in (format_instant(stored), str(stored)):
        done = call("consume", TOPIC, "--from", time, *ends_with(1))
        assert done.out.splitlines() == ["body 2"]


def test_a_format_has_the_fields_that_it_names(call: Shell) -> None:
    text = "{topic}/{queue}@{offset} {key} {keys} {tag} {n} {retries} {{{body}}}"

    done = call("consume", TOPIC, "--format", text.replace("{n} ", ""), *ends_with(1))

    assert done.out == "free/0@0 k0 k0 all even 0 {body 0}\n"
    assert call("consume", TOPIC, "--format", r"{id}\t{body}", *ends_with(1)).out.endswith(
        "\tbody 0\n"
    )
    wrong = call("consume", TOPIC, "--format", text, *ENOUGH)
    assert (wrong.code, "{n}" in wrong.err, "{body}" in wrong.err) == (2, True, True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{body:>9}|", "   body 0|"),
        ("{body:<9}|", "body 0   |"),
        ("{body:*^10}", "**body 0**"),
        ("{body:.4}", "body"),
        ("{body!r}", "'body 0'"),
        ("{offset:05d} {queue:>3}", "00000   0"),
        ("{priority:>3}|", "   |"),
        ("{retries:,}", "0"),
    ],
)
def test_a_format_takes_the_format_specs_of_python(call: Shell, text: str, line: str) -> None:
    done = call("consume", TOPIC, "--format", text, *ends_with(1))

    assert (done.code, done.out, done.err) == (0, f"{line}\n", "")


def test_what_excludes_each_other_is_refused(call: Shell) -> None:
    for arguments in (
        ("--group", "g", "--from", "latest"),
        ("--format", "{body}", "--json"),
        ("--format", "{body}", "--raw"),
        ("--from", "yesterday"),
        ("--from", "-1"),
    ):
        assert call("consume", TOPIC, *arguments, *ENOUGH).code == 2, arguments
    assert call("consume", "nowhere", *ENOUGH).code == 3


def test_a_group_takes_keys_and_formats_as_well(call: Shell) -> None:
    done = call(
        "consume",
        TOPIC,
        "--group",
        "keyed",
        "--key",
        "k1",
        "--format",
        "{key} {body}",
        "--timeout",
        "3",
    )

    assert (done.code, done.out) == (0, "k1 body 1\n")
    assert call("consume", TOPIC, "--group", "keyed", *ENOUGH).out == ""


def test_unix_seconds_are_not_taken_for_an_offset_that_no_queue_has(call: Shell) -> None:
    done = call("consume", TOPIC, "--from", "1700000000", *ENOUGH)

    assert done.code == 2
    assert "--from is 1700000000, which looks like Unix seconds: write milliseconds" in done.err
