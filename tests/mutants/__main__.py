"""`make mutants`: plants each bug, and reports the test that catches it."""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
from pathlib import Path

from .catching import Caught, Copy, chosen
from .planted import PLANTED, Planted


def main() -> int:
    """Return 0 if every bug was caught, and the tests pass without the bugs."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="only bugs with one of these words in name or path"
    )
    parser.add_argument("--jobs", type=int, default=2, help="bugs at a time (%(default)s)")
    options = parser.parse_args()
    bugs = chosen(PLANTED, options.words)
    if not bugs:
        parser.error(f"no planted bug has one of these words in its name or path: {options.words}")
    results = _checked(bugs, options.jobs)
    caught = [bug for bug in bugs if results[bug.name].verdict == "caught"]
    for bug in bugs:
        result = results[bug.name]
        _say(f"{result.verdict:9} {bug.name}: {result.test or bug.tests}")
        if result.verdict == "unknown":
            _say(result.output[-2_000:])
    sound = _pass_without([bug.tests for bug in bugs])
    _say(f"{len(caught)} of {len(bugs)} planted bugs caught")
    return 0 if len(caught) == len(bugs) and sound else 1


def _checked(bugs: list[Planted], jobs: int) -> dict[str, Caught]:
    """Check BUGS, JOBS at a time, each in a copy of the sources."""
    waiting: queue.SimpleQueue[Planted | None] = queue.SimpleQueue()
    for bug in (*bugs, *[None] * jobs):
        waiting.put(bug)
    results: dict[str, Caught] = {}

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Copy(Path(folder))
            while (bug := waiting.get()) is not None:
                results[bug.name] = result = copy.check(bug)
                _say(f"… {result.verdict}: {bug.name}")

    workers = [threading.Thread(target=work) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def _pass_without(tests: list[str]) -> bool:
    """Return whether TESTS pass in a copy without a bug: otherwise they prove nothing."""
    with tempfile.TemporaryDirectory() as folder:
        result = Copy(Path(folder)).run(
            " ".join(sorted({one for some in tests for one in some.split()}))
        )
    if result.verdict != "survived":
        _say(f"the tests fail without a bug, too: {result.test}\n{result.output[-2_000:]}")
    return result.verdict == "survived"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
