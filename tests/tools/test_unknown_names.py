"""A group or topic on the command line that does not exist is exit code 3; a pattern may match nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.tools.cli import run

from ..recorded import recorded_store

#: Commands on the store {store}, with a name that is there as {topic} and {group}.
COMMANDS = [
    "lag {store} --max-lag 1000000 --group {group} --topic {topic}",
    "lint {store} --messages 0 --group {group} --topic {topic}",
    "inspect {store} offsets --group {group} --topic {topic}",
    "inspect {store} log --topic {topic}",
    "diff {store} {store} --topic {topic}",
    "export {store} --topic {topic} --output {out}",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(recorded_store("consumption", tmp_path_factory.mktemp("names") / "store"))


@pytest.mark.parametrize("command", COMMANDS)
def test_names_that_a_store_does_not_know_are_not_found(
    tmp_path: Path, store: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command.startswith("export"):
        pytest.importorskip("pyarrow")

    def code(topic: str, group: str) -> int:
        out = tmp_path / f"{topic}-{group}"
        words = command.format(store=store, topic=topic, group=group, out=out).split()
        return run(words)

    assert code("Consumed", "G_lagging") in (0, 1)
    capsys.readouterr()
    assert code("Typo", "G_lagging") == 3
    assert "topic 'Typo' does not exist" in capsys.readouterr().err
    if "{group}" in command:
        assert code("Consumed", "G_typo") == 3
        assert "group 'G_typo' does not exist" in capsys.readouterr().err


def test_a_pattern_may_match_nothing(store: str) -> None:
    assert run(["lag", store, "--max-lag", "0", "--group", "typo*"]) == 0
