"""One entry of a table that cannot be read hides nothing else: what is left is shown, with a warning."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from pocketmq.store.format.java_json import parse, render
from pocketmq.tools.cli import run

from ...recorded import recorded_store

TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
}
SMALL_TABLES = {
    "consumerFilter.json": "filterDataByTopic",
    "consumerOrderInfo.json": "table",
    "messageRequestMode.json": "messageRequestModeMap",
    "topicQueueMapping.json": "topicQueueMappingInfoMap",
    "timermetrics": "timingCount",
}
NO_OBJECTS: tuple[Any, ...] = (None, 5, [1])


def store_with(folder: Path, file: str, member: str, bad: Any, *, backup: bool) -> Path:
    """Return a store in FOLDER with the entry Bad@G, which is BAD, in MEMBER of FILE, and of its backup or without."""
    store = recorded_store("consumption", folder / "store")
    path = store / "config" / file
    for old in path.parent.glob(f"{file}.bak"):
        old.unlink()
    document: Any = parse(path.read_text()) if path.exists() and path.stat().st_size else {}
    document[member] = (document.get(member) or {}) | {"Bad@G": bad}
    path.write_text(render(document))
    if backup:
        path.with_name(f"{file}.bak").write_text(path.read_text())
    return store


def ran(*arguments: str | Path) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(one) for one in arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("recovery", ["apache", "pocketmq"])
@pytest.mark.parametrize("backup", [False, True])
@pytest.mark.parametrize("bad", NO_OBJECTS)
@pytest.mark.parametrize("file", TABLES)
def test_lag_shows_everything_else(
    file: str, bad: Any, backup: bool, recovery: str, tmp_path: Path
) -> None:
    good = recorded_store("consumption", tmp_path / "good")
    store = store_with(tmp_path, file, TABLES[file], bad, backup=backup)

    def facts(folder: Path) -> tuple[int, list[Any], str]:
        code, out, err = ran("lag", folder, "--recovery", recovery, "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        return code, [(r["topic"], r["queue"], r["group"], r["lag"]) for r in rows], err

    code, rows, err = facts(store)

    assert (code, rows) == facts(good)[:2]
    assert rows
    assert err.startswith("pocketmq: warning: ")
    assert f"{file}: the entry 'Bad@G' is left out: Bad@G is " in err


@pytest.mark.parametrize("bad", NO_OBJECTS)
@pytest.mark.parametrize("file", TABLES)
def test_lint_and_inspect_name_the_entry(file: str, bad: Any, tmp_path: Path) -> None:
    store = store_with(tmp_path, file, TABLES[file], bad, backup=False)

    assert f"{file}: the entry 'Bad@G' is left out" in ran("lint", store)[2]
    _, out, _ = ran("inspect", store)
    assert f"{file}: the entry 'Bad@G' cannot be read" in " ".join(out.split())


@pytest.mark.parametrize("bad", NO_OBJECTS)
def test_forbidden_reading_of_one_group_that_cannot_be_read_hides_no_group(
    bad: Any, tmp_path: Path
) -> None:
    store = store_with(tmp_path, "subscriptionGroup.json", "forbiddenTable", bad, backup=False)

    code, out, _ = ran("inspect", store, "groups")

    assert code == 0
    assert "G_lagging" in out


@pytest.mark.parametrize("verb", ["lag", "lint", "doctor", "inspect"])
@pytest.mark.parametrize("bad", NO_OBJECTS)
@pytest.mark.parametrize("file", SMALL_TABLES)
def test_bad_entries_of_small_tables_end_no_command(
    file: str, bad: Any, verb: str, tmp_path: Path
) -> None:
    store = store_with(tmp_path, file, SMALL_TABLES[file], bad, backup=False)

    code, out, _ = ran(verb, store)

    assert code in (0, 1)
    assert out
