"""The verbs for topics and groups as a user runs them, against a `pocketmq serve`."""

import pytest

from ..complaint import complaint
from .command import Shell

pytestmark = pytest.mark.processes


def test_a_topic_is_there_for_the_next_call(call: Shell) -> None:
    created = call("topic", "create", "Made", "--type", "fifo", "--queues", "3", "--json")

    listed = {topic["name"]: topic for topic in call("topic", "list", "--json").documents}

    assert created.code == 0
    assert listed["Made"] == created.documents[0]
    assert (listed["Made"]["type"], listed["Made"]["write_queues"]) == ("FIFO", 3)


def test_a_topic_that_exists_is_not_created_again(call: Shell) -> None:
    call("topic", "create", "Twice")

    again = call("topic", "create", "Twice")

    assert again.code == 5
    assert complaint(again.err).startswith("pocketmq: ")


def test_a_topic_that_may_exist_is_left_as_it_is(call: Shell) -> None:
    call("topic", "create", "Perhaps", "--queues", "2")

    (topic,) = call("topic", "create", "Perhaps", "--if-missing", "--json").documents

    assert topic["write_queues"] == 2


def test_a_topic_is_changed_described_and_deleted(call: Shell) -> None:
    call("topic", "create", "Changing", "--queues", "2")

    updated = call("topic", "update", "Changing", "--queues", "5", "--permission", "read")
    described = call("topic", "describe", "Changing", "--json").documents[0]
    deleted = call("topic", "delete", "Changing", "--yes")
    gone = call("topic", "describe", "Changing")

    assert (updated.code, deleted.code, gone.code) == (0, 0, 3)
    assert (described["write_queues"], described["permission"], len(described["queues"])) == (
        5,
        4,
        5,
    )


def test_both_numbers_of_queues_are_shown_where_they_differ(call: Shell) -> None:
    call("topic", "create", "Narrowing", "--queues", "4")

    updated = call("topic", "update", "Narrowing", "--write-queues", "2")
    listed = call("topic", "list")

    assert "4 read, 2 written queues" in updated.out
    (line,) = [one for one in listed.out.splitlines() if one.startswith("Narrowing ")]
    assert "4 read, 2 written" in line


@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_a_topic_that_may_not_be_read_is_said_to_be_not_readable(
    call: Shell, group: tuple[str, ...]
) -> None:
    call("topic", "create", "Closed", "--queues", "1", "--if-missing")
    call("topic", "update", "Closed", "--permission", "write")

    done = call("consume", "Closed", "--limit", "1", "--timeout", "60", *group)

    assert done.code == 1
    assert "topic 'Closed' is not readable" in done.err


def test_nothing_is_deleted_unless_somebody_says_yes(call: Shell) -> None:
    call("topic", "create", "Stays", "--queues", "1")
    call("send", "Stays", "one")
    call("group", "create", "stays")

    for kind, name, what in (("topic", "Stays", "with 1 message?"), ("group", "stays", "offsets")):
        refused = call(kind, "delete", name)
        assert refused.code == 2
        assert what in refused.err
        assert "--yes" in refused.err
    assert call("topic", "describe", "Stays").code == 0
    assert call("group", "describe", "stays", "--interval", "0s").code == 0
    assert call("topic", "delete", "Missing").code == 3


def test_names_that_brokers_do_not_know_are_not_found(call: Shell) -> None:
    call("topic", "create", "Known", "--queues", "1")
    call("group", "create", "known")

    for verb in (["lag", "--max-lag", "10"], ["top", "--once", "--interval", "100ms"], ["lint"]):
        assert call(*verb, "--group", "known", "--topic", "Known").code in (0, 1)
        assert call(*verb, "--group", "unknown").code == 3
        assert call(*verb, "--group", "known", "--topic", "Unknown").code == 3
        assert call(*verb, "--group", "unknown*").code in (0, 1)


def test_unix_seconds_are_refused_where_milliseconds_are_wanted(call: Shell) -> None:
    call("topic", "create", "Timed", "--queues", "1")
    call("group", "create", "timed")

    for done in (
        call("find", "--topic", "Timed", "--since", "1764331200"),
        call("find", "--topic", "Timed", "--key", "k", "--until", "1764331200"),
        call("group", "reset-offset", "timed", "--topic", "Timed", "--to-time", "1764331200"),
    ):
        assert done.code == 2
        assert "1764331200000" in done.err


def test_a_bad_topic_name_is_wrong_usage(call: Shell) -> None:
    done = call("topic", "create", "no spaces")

    assert done.code == 2
    assert "no spaces" in done.err


def test_groups_are_created_listed_and_deleted(call: Shell) -> None:
    created = call("group", "create", "workers", "--fifo", "--retries", "3", "--json")
    listed = {group["name"]: group for group in call("group", "list", "--json").documents}
    deleted = call("group", "delete", "workers", "--yes")
    after = [group["name"] for group in call("group", "list", "--json").documents]

    assert (created.code, deleted.code) == (0, 0)
    assert listed["workers"] == created.documents[0]
    assert (listed["workers"]["order"], listed["workers"]["retry_max_times"]) == (True, 3)
    assert "workers" not in after


def test_a_topic_does_not_lose_queues_that_are_not_read(call: Shell) -> None:
    call("topic", "create", "Shrinking", "--queues", "4")
    call("send", "Shrinking", *(f"m{number}" for number in range(8)), "--queue", "3")

    refused = call("topic", "update", "Shrinking", "--queues", "2")
    (written,) = call("topic", "update", "Shrinking", "--write-queues", "2", "--json").documents
    (forced,) = call("topic", "update", "Shrinking", "--queues", "2", "--force", "--json").documents

    assert refused.code == 5
    assert "8 messages in removed queues" in refused.err
    assert "(broker-a:3), not read by any group" in refused.err
    assert (written["read_queues"], written["write_queues"]) == (4, 2)
    assert (forced["read_queues"], forced["write_queues"]) == (2, 2)


def test_a_topic_loses_queues_once_they_are_read(call: Shell) -> None:
    call("topic", "create", "ReadUp", "--queues", "4")
    call("send", "ReadUp", "one", "--queue", "3")
    call("consume", "ReadUp", "--group", "reader", "--limit", "1", "--timeout", "10")
    call("topic", "update", "ReadUp", "--write-queues", "2")

    done = call("topic", "update", "ReadUp", "--read-queues", "2", "--json")

    (updated,) = done.documents
    assert (done.code, updated["read_queues"], updated["write_queues"]) == (0, 2, 2)


def test_a_group_is_described_and_has_its_offsets_set(call: Shell) -> None:
    call("topic", "create", "Behind", "--queues", "2")
    call("send", "Behind", *(f"m{number}" for number in range(6)))
    call("consume", "Behind", "--group", "slow", "--limit", "6", "--timeout", "10")

    (before,) = call("group", "describe", "slow", "--interval", "0s", "--json").documents
    preview = call("group", "reset-offset", "slow", "--topic", "Behind", "--to-first", "--dry-run")
    moved = call("group", "reset-offset", "slow", "--topic", "Behind", "--to-first", "--json")
    (after,) = call(
        "group", "describe", "slow", "--topic", "Behind", "--interval", "100ms", "--json"
    ).documents
    shown = call("group", "describe", "slow", "--interval", "0s")

    assert (before["lag"], before["members"], before["subscription_check"]) == (0, [], "grace")
    assert "would skip 0 messages and receive 6 again" in preview.out
    assert sum(document["repeated"] for document in moved.documents) == 6
    assert after["lag"] == 6
    assert after["processed_per_s"] == 0
    assert all(queue["oldest_unread_ms"] > 0 for queue in after["queues"] if queue["lag"])
    assert "no members" in shown.out
    assert "6 messages" in shown.out


def test_what_cannot_be_described_or_set_is_said(call: Shell) -> None:
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
    typo = ["group", "reset-offset", "idel", "--topic", "Idle", "--to-last"]
    assert (call(*typo).code, call(*typo, "--dry-run").code) == (3, 3)
    assert "idel" not in call("group", "list").out
    assert call(*typo, "--create").code == 0
    (one,) = call(*reset, "--to-last", "--queue", "broker-a:1", "--json").documents
    assert (one["queue"], one["to"], one["dry_run"]) == (1, 0, False)
    (described,) = call("group", "describe", "idle", "--interval", "0s", "--json").documents
    assert described["subscription_check"] == "warn"


def test_what_was_sent_to_a_topic_is_described(call: Shell) -> None:
    call("topic", "create", "Counted", "--queues", "1")
    call("send", "Counted", "one")
    call("send", "Counted", "two")

    (described,) = call("topic", "describe", "Counted", "--json").documents
    shown = call("topic", "describe", "Counted").out

    assert described["sent"]["messages"] == 2
    assert described["sent"]["failed"] == 0
    assert described["sent"]["last_ms"] > 0
    assert "2 messages, " in shown
    assert "since the brokers started, the last at " in shown


def test_how_many_replicas_a_topic_needs_is_said_when_it_is_made_or_changed(call: Shell) -> None:
    (made,) = call.done("topic", "create", "Kept", "--min-in-sync", "2")
    (changed,) = call.done("topic", "update", "Kept", "--min-in-sync", "3")

    assert [one["attributes"]["min_in_sync"] for one in (made, changed)] == ["2", "3"]
    assert call("topic", "update", "Kept", "--min-in-sync", "0").code == 2
