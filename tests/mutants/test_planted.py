"""Every planted bug has its place in the sources; the harness tells a bug that is caught from one that is not."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from .catching import ROOT, Copy, chosen, planted_text, verdict
from .planted import PLANTED, Planted

#: Changes nothing that runs.
HARMLESS = Planted(
    "a comment",
    "store/retention.py",
    "candidates = modified_ms[:-1]",
    "candidates = modified_ms[:-1]  # The newest stays.",
    "tests/store/test_retention.py",
)
#: Cannot be imported: that no test can run must not count as caught.
UNUSABLE = Planted(
    "not Python", "store/retention.py", "candidates = modified_ms[:-1]", "candidates = (", HARMLESS.tests
)  # fmt: skip
QUICK = "retention may delete the newest log file"


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_place_of_a_bug_is_unique_and_the_result_is_valid_python(bug: Planted) -> None:
    before = (ROOT / bug.path).read_text("utf-8")
    assert ast.dump(ast.parse(planted_text(before, bug))) != ast.dump(ast.parse(before))
    assert all((ROOT / one.partition("::")[0]).exists() for one in bug.tests.split())


def test_there_are_forty_bugs_of_different_names() -> None:
    assert len(PLANTED) >= 40
    assert Counter(one.name for one in PLANTED).most_common(1)[0][1] == 1


def test_a_place_that_is_missing_or_ambiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="has the text 2 times"):
        planted_text(HARMLESS.before * 2, HARMLESS)


def test_the_verdict_follows_from_what_pytest_says() -> None:
    assert verdict(0, "3 passed").verdict == "survived"
    assert verdict(1, "FAILED tests/a.py::test_b - assert\n1 failed").test == "tests/a.py::test_b"
    assert verdict(2, "ERROR tests/a.py\n1 error").verdict == "unknown"
    assert verdict(4, "no such file").verdict == "unknown"


@pytest.mark.processes
@pytest.mark.long
def test_a_bug_is_caught_and_a_harmless_change_is_not(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    (bug,) = chosen(PLANTED, [QUICK])
    assert copy.check(HARMLESS).verdict == "survived"
    assert copy.check(bug).verdict == "caught"
    assert copy.check(UNUSABLE).verdict == "unknown"
    assert copy.check(HARMLESS).verdict == "survived", "the copy is as before"
