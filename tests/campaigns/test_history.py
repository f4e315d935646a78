"""The check of a history: a good one passes, and of each rule there is one that breaks it and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from .history import (
    EXAMPLES_MAX,
    Acknowledged,
    Committed,
    Fetched,
    History,
    Reign,
    ReplicaFiles,
    Rule,
    Sent,
    Stored,
    check,
    digest_of,
    tally,
)


def stored(number: int) -> Stored:
    return Stored(number, digest_of(b"record %d" % number))


def good() -> History:
    """Two queues, six messages of two producers, a reader of all, three replicas after two failovers."""
    history = History(confirm=600)
    history.queues = {0: [stored(1), stored(2), stored(4)], 1: [stored(3), stored(5)]}
    for number, queue in ((1, 0), (2, 0), (3, 1), (4, 0)):
        history.sent[number] = Sent(number, "a", "replicas", queue)
    history.sent[5] = Sent(5, "b", "disk", 1)
    history.sent[6] = Sent(6, "b", "disk", 1)  # Acknowledged on one device, which is gone.
    history.sent[7] = Sent(7, "a", "replicas", 0)  # Never acknowledged, nor stored.
    history.acknowledged = [
        Acknowledged(1, 0, 0),
        Acknowledged(2, 0, 1),
        Acknowledged(3, 1, -1),
        Acknowledged(5, 1, 1),
        Acknowledged(6, 1, 2),
    ]
    history.fetched = [
        Fetched("reader", 0, 0, [stored(1).digest, stored(2).digest]),
        Fetched("reader", 0, 1, [stored(2).digest, stored(4).digest]),
        Fetched("reader", 1, 0, [stored(3).digest, stored(5).digest]),
        Fetched("idle", 1, 1, [stored(5).digest]),
    ]
    history.finished = {("reader", 0), ("reader", 1)}
    history.committed = [Committed("g", 0, 3), Committed("g", 1, 2)]
    history.cells = [Reign(0, 0), Reign(1, 1), Reign(1, 1), Reign(2, 2), Reign(1, 4)]
    history.reigns = [Reign(1, 1), Reign(2, 2), Reign(3, 3), Reign(1, 4)]
    files = {"00000000000000000000": "aa", "00000000000000000400": "bb"}
    epochs = ((1, 0), (2, 200), (4, 500))
    history.replicas = [
        ReplicaFiles(replica=1, end=600, files=files, epochs=epochs),
        ReplicaFiles(replica=2, end=640, files=files, epochs=epochs),
        ReplicaFiles(replica=3, end=600, files=files, epochs=((1, 0), (4, 500))),
    ]
    return history


def test_a_good_history_passes() -> None:
    assert check(good()) == []


def test_a_tally_says_how_much_there_was_to_check() -> None:
    assert tally(good()) == {
        "sent": 7,
        "acknowledged_disk": 2,
        "acknowledged_replicas": 3,
        "stored": 5,
        "fetched": 7,
        "committed": 2,
        "epochs": 4,
        "log_bytes": 600,
    }


def lose_an_acknowledged_message(history: History) -> None:
    history.queues[0] = history.queues[0][:2]
    history.acknowledged.append(Acknowledged(4, 0, 2))
    history.fetched[1] = Fetched("reader", 0, 1, [stored(2).digest])
    history.committed[0] = Committed("g", 0, 2)


def acknowledge_it_elsewhere(history: History) -> None:
    history.acknowledged[0] = Acknowledged(1, 0, 1)


def store_it_twice(history: History) -> None:
    history.queues[1] = [*history.queues[1], stored(5)]
    history.finished.clear()


def store_what_was_never_sent(history: History) -> None:
    history.queues[1] = [*history.queues[1], stored(99)]
    history.finished.clear()


def damage_a_body(history: History) -> None:
    history.queues[1] = [*history.queues[1], Stored(None, 1)]
    history.finished.clear()


def turn_the_order_round(history: History) -> None:
    history.queues[1] = [stored(3), stored(6), stored(5)]
    history.acknowledged = history.acknowledged[:3]
    history.fetched, history.finished = [], set()


def store_it_in_another_queue(history: History) -> None:
    history.sent[3] = Sent(3, "a", "replicas", 0)


def take_back_what_was_read(history: History) -> None:
    history.fetched.append(Fetched("idle", 0, 2, [stored(7).digest]))


def show_what_is_not_in_the_log(history: History) -> None:
    history.fetched.append(Fetched("idle", 1, 1, [stored(5).digest, stored(6).digest]))


def skip_an_offset(history: History) -> None:
    history.fetched[1] = Fetched("reader", 0, 1, [stored(2).digest])


def finish_without_reading(history: History) -> None:
    history.finished.add(("idle", 1))


def commit_beyond_the_log(history: History) -> None:
    history.committed.append(Committed("g", 1, 3))


def leave_a_replica_behind(history: History) -> None:
    history.replicas[2] = replace(history.replicas[2], end=599)


def let_files_differ(history: History) -> None:
    files = dict(history.replicas[1].files) | {"00000000000000000400": "bc"}
    history.replicas[1] = replace(history.replicas[1], files=files)


def lack_a_file(history: History) -> None:
    history.replicas[2] = replace(history.replicas[2], files={"00000000000000000000": "aa"})


def fall_back_in_the_registry(history: History) -> None:
    history.cells.append(Reign(2, 2))


def begin_an_epoch_elsewhere(history: History) -> None:
    epochs = ((1, 0), (2, 201), (4, 500))
    history.replicas[1] = replace(history.replicas[1], epochs=epochs)


def let_epochs_of_a_replica_fall(history: History) -> None:
    history.replicas[2] = replace(history.replicas[2], epochs=((4, 500), (1, 0)))


def have_an_epoch_that_nobody_wrote(history: History) -> None:
    epochs = ((1, 0), (4, 500), (5, 600))
    history.replicas[2] = replace(history.replicas[2], epochs=epochs)


def reign_twice(history: History) -> None:
    history.reigns.append(Reign(3, 2))


def reign_against_the_registry(history: History) -> None:
    history.reigns[0] = Reign(3, 1)


def set_a_store_aside(history: History) -> None:
    history.replicas[0] = replace(history.replicas[0], set_aside=("store.set-aside-17",))


BROKEN: list[tuple[Rule, Callable[[History], None]]] = [
    ("acknowledged", lose_an_acknowledged_message),
    ("acknowledged", acknowledge_it_elsewhere),
    ("once", store_it_twice),
    ("once", store_what_was_never_sent),
    ("once", damage_a_body),
    ("order", turn_the_order_round),
    ("order", store_it_in_another_queue),
    ("fetched", take_back_what_was_read),
    ("fetched", show_what_is_not_in_the_log),
    ("skipped", skip_an_offset),
    ("skipped", finish_without_reading),
    ("equal", leave_a_replica_behind),
    ("equal", let_files_differ),
    ("equal", lack_a_file),
    ("offsets", commit_beyond_the_log),
    ("epochs", fall_back_in_the_registry),
    ("epochs", begin_an_epoch_elsewhere),
    ("epochs", let_epochs_of_a_replica_fall),
    ("epochs", have_an_epoch_that_nobody_wrote),
    ("one master", reign_twice),
    ("one master", reign_against_the_registry),
    ("set aside", set_a_store_aside),
]


@pytest.mark.parametrize(
    ("rule", "spoil"), BROKEN, ids=[f"{rule}: {spoil.__name__}" for rule, spoil in BROKEN]
)
def test_what_breaks_a_rule_is_told_and_nothing_else(
    rule: Rule, spoil: Callable[[History], None]
) -> None:
    history = good()
    spoil(history)

    assert {violation.rule for violation in check(history)} == {rule}


def test_only_a_few_examples_of_a_rule_are_told_and_how_many_more_there_are() -> None:
    history = good()
    history.committed += [Committed("g", 1, 10 + more) for more in range(20)]

    violations = check(history)

    assert len(violations) == EXAMPLES_MAX + 1
    assert violations[-1].sentence == f"and {20 - EXAMPLES_MAX} more"
