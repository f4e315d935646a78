"""What `pocketmq consume --format` refuses, with the reason, before it asks a broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pocketmq.tools import consume
from pocketmq.tools.cli import run


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Single '{' encountered in format string"),
        ("{}", "{} is not a field: write one of {body}, {key}"),
        ("{nothing:>9}", "{nothing} is not a field"),
        ("{body.__class__}", "{body.__class__} is not a field"),
        ("{body[0]}", "{body[0]} is not a field"),
        ("{body:{queue}}", "{body:{queue}}: a format spec cannot contain fields"),
        ("{body:d}", "{body:d}: Unknown format code 'd' for object of type 'str'"),
        ("{queue:s}", "{queue:s}: Unknown format code 's' for object of type 'int'"),
        ("{priority:d}", "{priority:d}: Unknown format code 'd' for object of type 'str'"),
        ("{offset:c}", "{offset:c}: "),
        ("{body!x}", "{body!x}: "),
        ("{body:>100000}", "{body:>100000}: numbers in a format spec have up to 5 digits"),
        ("{offset:.999999999f}", "numbers in a format spec have up to 5 digits"),
    ],
)
def test_the_reason_is_named(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "T", "--format", text]) == 2

    error = capsys.readouterr().err
    assert "Invalid value for --format: " in error
    assert why in error


def test_the_docs_name_every_field() -> None:
    docs = (Path(__file__).parents[2] / "docs/consume-command.md").read_text()
    sentence = re.search(r"`--format` prints the fields in braces: ([^.]+)\.", docs)
    assert sentence is not None

    assert set(re.findall(r"`(\w+)`", sentence[1])) == set(consume._FIELDS)
