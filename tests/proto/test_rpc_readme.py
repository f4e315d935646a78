"""The example of proto/rpc's README: it runs as it stands, and prints what it says."""

from __future__ import annotations

import re

import pytest

import pocketmq.proto.rpc

from ..repository.source_tree import ROOT

README = (ROOT / "proto/rpc/README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (said,) = re.findall(r"It prints `(.*?)`", README)

    exec(compile(example, "README.md", "exec"), {})

    assert capsys.readouterr().out == said + "\n"


def test_each_name_that_is_offered_is_there() -> None:
    for name in pocketmq.proto.rpc.__all__:
        assert getattr(pocketmq.proto.rpc, name) is not None


def test_the_readme_names_each_file() -> None:
    named = set(re.findall(r"`([a-z_0-9]+)[.`]", README))

    files = {path.stem for path in (ROOT / "proto/rpc").glob("*.py")} - {"__init__"}
    assert files <= named
