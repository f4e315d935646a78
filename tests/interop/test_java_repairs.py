"""Apache's broker opens repaired copies and forks, finds what we find in them, and serves on them."""

import os
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.store.file_sizes import settings_of
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.fork.forking import make_fork
from pocketmq.tools.inspect.document import describe_ours
from pocketmq.tools.repaired_copy import make_repaired_copy

from ..recorded import expected, recorded_names, recorded_store, settings
from .java_oracle import dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(1800)]

#: One of each kind of repair; every store with POCKETMQ_ALL_STORES=1, which takes some minutes.
KINDS = [
    "damaged-flip-recent",
    "damaged-missing-middle-log",
    "damaged-no-queues-unclean",
    "damaged-broken-json",
    "damaged-garbage-index",
    "damaged-stale-tail",
    "unclean-late",
]
DAMAGED = (
    [name for name in recorded_names() if name.startswith(("damaged-", "unclean"))]
    if os.environ.get("POCKETMQ_ALL_STORES")
    else KINDS
)
FORKED = ["rolled", "delays", "transactions", "consumption", "encodings", "unclean-late"]


def require_same(store: Path, given: dict[str, str], java: dict[str, Any]) -> None:
    """Apache finds the messages and queues in STORE that we find there."""
    chosen = settings_of(OsDisk(), str(store), given)
    ours = describe_ours(str(store), given, chosen, SystemClock().now_ms(), lookups=False)
    assert ours["recovery"]["findings"] == [] or "missing-middle" in store.parent.name
    assert java["accepted"], java["log"]
    assert served(java) == served(ours)
    assert bounds(java) == bounds(ours)


def served(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["records"] if one["crcOk"] and one["sysFlag"] & 12 != 12]


def bounds(document: dict[str, Any]) -> dict[Any, Any]:
    return {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
        for queue in document["queues"]
        if queue["maxOffset"]
    }


def test_repaired_copies(tmp_path: Path) -> None:
    require_java()
    made: list[tuple[Path, dict[str, str]]] = []
    for name in DAMAGED:
        store = recorded_store(name, tmp_path / name / "store")
        target = tmp_path / name / "copy"
        given = settings(name)
        make_repaired_copy(str(store), str(target), given, SystemClock().now_ms)
        made.append((target, given))

    found = dumps(made, tmp_path / "java")

    for (store, given), java in zip(made, found, strict=True):
        require_same(store, given, java)
    assert verify_start(*made[DAMAGED.index("damaged-flip-recent")])["healthy"]


def test_forks(tmp_path: Path) -> None:
    require_java()
    made: list[tuple[Path, dict[str, str]]] = []
    moments: list[int] = []
    for name in FORKED:
        store = recorded_store(name, tmp_path / name / "store")
        target = tmp_path / name / "fork"
        given = settings(name)
        times = sorted(record["storeTimestamp"] for record in expected(name)["records"])
        moments.append(times[len(times) // 2])
        make_fork(str(store), str(target), moments[-1], given, SystemClock().now_ms)
        made.append((target, given))

    found = dumps(made, tmp_path / "java")

    for name, moment, (store, given), java in zip(FORKED, moments, made, found, strict=True):
        require_same(store, given, java)
        wanted = [r for r in expected(name)["records"] if r["storeTimestamp"] <= moment]
        assert java["records"] == wanted
