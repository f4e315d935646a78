"""The rules of all decoders hold for valid bytes, for those that once broke one, and for changed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from . import campaign, target
from .all_targets import BY_NAME

Change = tuple[int, int, bytes]

#: Where bytes are cut out (a place in the input, and how many), and what replaces them.
CHANGES: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(st.integers(0, 2_000), st.sampled_from((0, 1, 2, 4, 9)), st.binary(max_size=5)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_decoder_takes_valid_bytes_and_those_of_the_corpus(name: str) -> None:
    inputs = BY_NAME[name].inputs()

    assert inputs
    for data in inputs:
        BY_NAME[name].check(data)


@pytest.mark.parametrize("name", BY_NAME)
@given(data=st.data())
def test_a_decoder_returns_or_refuses_whatever_it_gets(name: str, data: st.DataObject) -> None:
    changed = bytearray(data.draw(st.sampled_from(BY_NAME[name].inputs())))
    for place, cut, added in data.draw(CHANGES):
        at = place % (len(changed) + 1)
        changed[at : at + cut] = added

    BY_NAME[name].check(bytes(changed))


def test_each_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {folder.name for folder in target.CORPUS.iterdir()} <= set(BY_NAME)


def test_bytes_that_broke_a_rule_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"a > 5")
    run = CliRunner().invoke(campaign.main, ["sql", "--replay", str(file)])
    assert run.output == f"sql: {file} breaks no rule\n"

    def check(data: bytes) -> None:
        raise AssertionError(data)

    monkeypatch.setitem(BY_NAME, "sql", BY_NAME["sql"]._replace(check=check))
    run = CliRunner().invoke(campaign.main, ["sql", "--replay", str(file)])
    assert isinstance(run.exception, AssertionError)
