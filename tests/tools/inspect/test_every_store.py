"""Every view of every recorded store, sound or damaged: no traceback, JSON that parses, not a byte written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pocketmq.proto.errors import PocketMQError
from pocketmq.tools.inspect.command import VIEWS, inspect

from ...recorded import recorded_names, recorded_store
from ...stores import fingerprint

FORMS: list[list[str]] = [[], ["--json"], ["--jsonl"]]
#: The words of each view; a view that is missing here fails the test.
WORDS: dict[str, list[list[str]]] = {
    "overview": [[]],
    "log": [["--limit", "200"], ["--last", "20"], ["--since", "2026-11-21", "--limit", "5"]],
    "record": [["0"], ["1345896"], ["786432"]],
    "queue": [["Fill0", "0"], ["SCHEDULE_TOPIC_XXXX", "2", "--all"], ["InnerBatched", "0"]],
    "index": [[], ["last"]],
    "checkpoint": [[]],
    "offsets": [[]],
    "topics": [[]],
    "groups": [[]],
    "schedule": [[]],
    "timer": [[], ["--log"]],
    "transactions": [["--all"]],
    "verify": [[]],
    "tables": [[]],
}


@pytest.mark.long
@pytest.mark.parametrize("name", recorded_names())
def test_views_describe_and_write_nothing(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    before = fingerprint(store)
    assert set(WORDS) == set(VIEWS)

    for view, words in WORDS.items():
        for some in words:
            for form in FORMS if some is words[0] else FORMS[-1:]:
                result = CliRunner().invoke(inspect, [str(store), view, *some, *form])
                if isinstance(result.exception, PocketMQError):
                    assert result.exception.status == "NOT_FOUND"
                    continue
                assert result.exception is None or result.exit_code == 1, (view, some)
                told = result.stdout
                if form == ["--json"]:
                    json.loads(told)
                elif form:
                    assert all(isinstance(json.loads(line), dict) for line in told.splitlines())
                else:
                    assert told.strip()

    assert fingerprint(store) == before


@pytest.mark.parametrize("view", list(VIEWS))
def test_views_of_an_empty_folder_say_that_nothing_is_there(view: str, tmp_path: Path) -> None:
    for words in WORDS[view]:
        result = CliRunner().invoke(inspect, [str(tmp_path), view, *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            assert isinstance(result.exception, PocketMQError)

    assert list(tmp_path.iterdir()) == []
