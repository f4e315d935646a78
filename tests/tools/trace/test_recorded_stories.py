"""Stories of messages that a real broker stored: as the fixtures' README and Java's dumps have it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pocketmq.store.os_disk import OsDisk
from pocketmq.tools import cli
from pocketmq.tools.find.search import StoreSearch
from pocketmq.tools.trace.copies import messages_of
from pocketmq.tools.trace.history import history_of
from pocketmq.tools.trace.sources import Witnesses
from pocketmq.tools.trace.timeline import Story

from ...recorded import expected, recorded_store
from ...stores import fingerprint

INTERNAL = ("rmq_sys_REVIVE_LOG", "RMQ_SYS_TRANS_OP_HALF_TOPIC")


class Storyteller:
    """Tells stories of the messages in one store."""

    def __init__(self, path: Path) -> None:
        self.search = StoreSearch(OsDisk(), str(path))
        self.witnesses = Witnesses(OsDisk(), self.search, mapped=True)

    def of_id(self, unique: str) -> Story:
        copies = self.witnesses.copies_of(self.search.by_id(unique).hits, scan=False)
        return history_of(copies, self.witnesses.evidence(copies))

    def of_key(self, key: str) -> Story:
        (known,) = messages_of(self.search.by_key(None, key).hits)
        copies = self.witnesses.copies_of(known, scan=False)
        return history_of(copies, self.witnesses.evidence(copies))


def storyteller(name: str, path: Path) -> Storyteller:
    return Storyteller(recorded_store(name, path / name))


def kinds(story: Story) -> list[str]:
    return [event.kind for event in story.events]


def verdicts(story: Story) -> dict[str, str]:
    return {view.group: view.verdict for view in story.groups}


def by_unique_id(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of Java's dump by unique id; those of the broker's own bookkeeping left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in expected(name)["records"]:
        unique = record["properties"].get("UNIQ_KEY", "")
        if unique and "@" not in unique and not record["topic"].startswith(INTERNAL):
            found.setdefault(unique, []).append(record)
    return found


@pytest.mark.parametrize("name", ["consumption", "delays", "transactions", "encodings"])
def test_a_story_shows_every_record_of_its_message(name: str, tmp_path: Path) -> None:
    teller = storyteller(name, tmp_path)

    for unique, records in by_unique_id(name).items():
        story = teller.of_id(unique)

        shown = {
            event.copy.log_offset
            for event in story.events
            if event.copy is not None
            and event.kind not in ("rolled back", "popped", "acknowledged")
        }
        assert shown == {one["physicalOffset"] for one in records}, unique
        times = [event.time_ms or 0 for event in story.events]
        assert times == sorted(times)
        assert story.message_id == unique


# ---------------------------------------------------------------- transactions


def test_transactions_end_as_they_were_recorded(tmp_path: Path) -> None:
    teller = storyteller("transactions", tmp_path)

    stories = [teller.of_key(f"trans-{number}") for number in range(25)]

    assert Counter(story.state for story in stories) == {"stored": 10, "rolled back": 10, "half": 5}
    asked = [story for story in stories if "checked" in kinds(story)]
    assert Counter(story.state for story in asked) == {"stored": 5, "rolled back": 5, "half": 5}
    committed = next(story for story in stories if story.state == "stored")
    assert kinds(committed) == ["half", "committed"]


def test_an_open_transaction_tells_every_check(tmp_path: Path) -> None:
    story = storyteller("transactions", tmp_path).of_key("trans-2")

    assert kinds(story) == ["half"] + ["checked"] * 6
    assert "checked 6 times" in story.conclusion


# ---------------------------------------------------------------- delays


def test_delayed_messages_wait_or_have_moved(tmp_path: Path) -> None:
    teller = storyteller("delays", tmp_path)

    for level in (1, 2, 3, 4):
        story = teller.of_key(f"level-{level}-0")
        assert (kinds(story), story.state) == (["waits", "moved"], "stored")
    for level in (5, 9, 14, 18, 99):
        story = teller.of_key(f"level-{level}-0")
        assert (kinds(story), story.state) == (["waits"], "waiting")
        (waits,) = story.events
        assert waits.time_ms is not None
        assert waits.due_ms is not None
    minute = teller.of_key("level-5-0").events[0]
    assert (minute.due_ms or 0) - (minute.time_ms or 0) == 60_000


def test_timed_messages_fire_wait_roll_or_are_recalled(tmp_path: Path) -> None:
    teller = storyteller("delays", tmp_path)

    found = {
        key: (kinds(story), story.state)
        for key in ("sec-3-0", "past-0", "hour-0", "day-1", "beyond-roll-window-0", "recalled-0", "recalled-soon-1")
        for story in [teller.of_key(key)]
    }  # fmt: skip

    assert found == {
        "sec-3-0": (["waits", "moved"], "stored"),
        "past-0": (["stored"], "stored"),
        "hour-0": (["waits"], "waiting"),
        "day-1": (["waits"], "waiting"),
        "beyond-roll-window-0": (["waits"], "waiting"),
        "recalled-0": (["waits", "recalled"], "recalled"),
        "recalled-soon-1": (["waits", "recalled"], "recalled"),
    }
    assert "is rolled over at" in teller.of_key("beyond-roll-window-0").events[0].text
    assert "timer log position 156" in teller.of_key("hour-0").events[0].text


# ---------------------------------------------------------------- consumption


def test_a_dead_letter_tells_every_try(tmp_path: Path) -> None:
    teller = storyteller("consumption", tmp_path)
    dead = [
        unique
        for unique, records in by_unique_id("consumption").items()
        if records[-1]["topic"] == "%DLQ%G_failing"
    ]

    assert len(dead) == 4
    for unique in dead:
        story = teller.of_id(unique)
        assert story.state == "dead letter"
        assert story.conclusion == "dead letter of G_failing after 3 failures"
        told = [event.kind for event in story.events if event.kind != "read"]
        assert told == ["stored", "sent back", "retried", "sent back", "retried", "dead letter"]
        assert story.topic == "Failing"


def test_groups_that_filter_never_got_what_their_filter_turns_down(tmp_path: Path) -> None:
    teller = storyteller("consumption", tmp_path)
    consumed = [
        (unique, records[0])
        for unique, records in by_unique_id("consumption").items()
        if records[0]["topic"] == "Consumed"
    ]

    for unique, record in consumed:
        properties = record["properties"]
        wanted = int(properties["n"]) > 50 and properties["color"] == "red"
        verdict = verdicts(teller.of_id(unique))["G_sql"]
        read = "read" if record["queueOffset"] < 30 else "not yet"
        assert verdict == (read if wanted else "filtered"), properties


def test_committed_offsets_say_who_has_read(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    teller = Storyteller(store)
    table = expected("consumption")["config"]["consumerOffsets"]
    written_ms = (store / "config" / "consumerOffset.json").stat().st_mtime_ns // 1_000_000

    for unique, records in by_unique_id("consumption").items():
        record = records[0]
        if record["topic"] not in ("Consumed", "Ordered"):
            continue
        story = teller.of_id(unique)
        for view in story.groups:
            if view.verdict == "filtered" or view.topic != record["topic"]:
                continue
            committed = table[f"{view.topic}@{view.group}"][str(view.queue)]
            failed = any(
                event.kind == "sent back" and event.group == view.group for event in story.events
            )
            assert (view.verdict == "read") == (committed > view.offset or failed)
            assert view.before_ms is None or view.before_ms <= written_ms


def test_popped_messages_are_acknowledged_revived_or_held(tmp_path: Path) -> None:
    teller = storyteller("consumption", tmp_path)
    popped = [
        unique
        for unique, records in by_unique_id("consumption").items()
        if records[0]["topic"] == "Popped"
    ]

    first = Counter(teller.of_id(unique).groups[0].verdict for unique in popped)

    # Of the 20 of queue 1: those that have a copy in the retry topic were revived.
    revived = {
        record["properties"]["UNIQ_KEY"]
        for record in expected("consumption")["records"]
        if record["topic"] == "%RETRY%G_pop_Popped"
    }
    assert first["revived"] == len(revived)
    assert first["acknowledged"] > 0
    assert first["held"] > 0
    twice = teller.of_key("Popped-15")
    assert kinds(twice) == ["stored", "popped", "revived", "popped", "revived"]
    assert twice.state == "retrying"
    assert twice.topic == "Popped"


def test_a_change_of_the_hidden_time_holds_a_message_on(tmp_path: Path) -> None:
    teller = storyteller("consumption", tmp_path)

    for number in (3, 27, 35):  # queue 1, offsets 1, 13 and 17
        story = teller.of_key(f"Popped-{number}")
        assert kinds(story) == ["stored", "popped", "popped"]
        assert verdicts(story) == {"G_pop": "held"}
        assert story.events[2].text == "invisible time changed by G_pop, invisible for 1800 s"


def test_a_locked_queue_holds_what_was_popped_in_order(tmp_path: Path) -> None:
    teller = storyteller("consumption", tmp_path)

    found = [verdicts(teller.of_key(f"fifo-{number}"))["G_pop_fifo"] for number in (0, 2, 4, 6)]

    assert found == ["read", "held", "held", "not yet"]


# ---------------------------------------------------------------- the command


def why(*arguments: str) -> int:
    return cli.run(["trace", *arguments])


def test_a_message_is_named_by_id_place_or_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(recorded_store("delays", tmp_path / "store"))
    record = next(
        one for one in expected("delays")["records"] if one["properties"].get("KEYS") == "level-1-1"
    )
    names: list[tuple[str, ...]] = [
        (record["properties"]["UNIQ_KEY"],),
        (record["msgId"],),
        (f"{record['topic']}/{record['queueId']}/{record['queueOffset']}",),
        ("Delayed/1/0",),
        ("level-1-1", "--topic", "Delayed"),
    ]

    stories = []
    for name in names:
        assert why(*name, "--store", store, "--json") == 0
        stories.append(json.loads(capsys.readouterr().out))

    assert all(story == stories[0] for story in stories)
    assert [event["kind"] for event in stories[0]["events"]] == ["waits", "moved"]
    assert stories[0]["events"][0]["log_offset"] == record["physicalOffset"]


def test_people_get_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(recorded_store("delays", tmp_path / "store"))

    assert why("hour-0", "--topic", "Timed", "--store", store) == 0

    out = capsys.readouterr().out
    assert "waits until 2026-11-21 02:54:57.251Z for Timed/0" in out
    assert out.splitlines()[-1] == "→ waits until 2026-11-21 02:54:57.251Z for Timed/0"


@pytest.mark.parametrize("name", ["Fill0/0/3", "7F00000100002AC70000000000000005"])
def test_what_expired_is_told_as_gone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(recorded_store("cleaned", tmp_path / "store"))

    assert why(name, "--store", store, "--json") == 3

    story = json.loads(capsys.readouterr().out)
    assert story["state"] == "gone"
    assert "file expired: the log begins at 983,040" in story["conclusion"]
    assert [event["kind"] for event in story["events"]] == ["gone"]


def test_a_key_whose_index_entries_outlived_the_log_tells_about_when_it_was_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = recorded_store("cleaned", tmp_path / "store")
    search = StoreSearch(OsDisk(), str(store))
    gone = next(one.log_offset for one in search.by_key("Fill0", "same", count=100_000).expired)

    assert 864_668 <= gone < 983_040
    assert why("nobody", "--topic", "Fill0", "--store", str(store)) == 3
    assert "It may have existed: messages stored before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "state"), [("Fill0/0/10", "stored"), ("Fill0/0/99999", None), ("nonsense", None)]
)
@pytest.mark.parametrize(
    "store",
    [
        "damaged-broken-json", "damaged-flip-middle-clean", "damaged-garbage-index", "damaged-missing-middle-log",
        "damaged-no-checkpoint", "damaged-no-config", "damaged-no-side-files", "damaged-odd-log-file",
        "damaged-short-index", "damaged-stale-tail", "damaged-torn-tail", "damaged-zeroed-tail", "default-sizes",
    ],
)  # fmt: skip
def test_a_damaged_store_tells_what_is_left_and_is_not_touched(
    name: str, state: str | None, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded_store(store, tmp_path / "store")
    before = fingerprint(path)

    code = why(name, "--store", str(path), "--json")

    out, err = capsys.readouterr()
    assert "Traceback" not in err
    if state is not None and (path / "consumequeue" / "Fill0").exists():
        assert code == 0
        assert json.loads(out)["state"] == state
    else:
        assert (code, out) == (3, "")
        assert err.startswith("pocketmq: message ")
    assert fingerprint(path) == before


def test_wrong_usage_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why("x", "--scan") == 2
    assert "--broker-conf and --scan need a STORE" in capsys.readouterr().err
    assert why("x", "--store", str(tmp_path / "nowhere")) == 2
    assert "nowhere" in capsys.readouterr().err
