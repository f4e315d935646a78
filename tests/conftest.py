"""What every test gets: no process of its own, unless it is marked to start some; Hypothesis without a deadline,
because a shared machine is sometimes slow, and with blobs that replay a failure, in `make unit` with fewer examples;
servers on the carrier that `--grpc` asks for; an end, whatever hangs; a collector of garbage that is on; and reports
that can travel from the process that ran a test, whatever the test has logged."""

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import Final

import pytest
from hypothesis import settings

from pocketmq.proto.carriers import GRPC_CHOICES

from . import served

settings.register_profile("pocketmq", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("pocketmq"), max_examples=12)
settings.load_profile("pocketmq")
# What thousands of tests leave adds up: to look through all of it as often as by default took a tenth of their time.
gc.set_threshold(7_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grpc",
        choices=GRPC_CHOICES,
        default=served.chosen(),
        help="what speaks HTTP/2 in name servers and brokers that tests start (%(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    served.choose(str(config.getoption("--grpc")))
    # Output is not captured yet, so this is the stderr that somebody reads.
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    # A shell ignores Ctrl-C for commands in the background, and each process that a test starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_STDERR: Final = pytest.StashKey[int]()
#: An event loop and a call into C can swallow the failure by which a test's time limit ends it.
_GRACE_S: Final = 60

#: Tests that may start processes; `make unit` leaves out all of them.
_STARTERS = ("processes", "java", "spark", "campaign")
_forbidden = False


def _watch_processes(event: str, arguments: tuple[object, ...]) -> None:
    if _forbidden and event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        raise AssertionError(f"{event} {arguments}: mark the test with pytest.mark.processes")


sys.addaudithook(_watch_processes)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files that start processes first: they take longest, and a last one would leave other workers idle."""
    starting = {item.path for item in items if any(map(item.get_closest_marker, _STARTERS))}
    items.sort(key=lambda item: item.path not in starting)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Refuse processes to a test that is not marked to start some. Where a test outlives its time limit, show where it
    stands, and end its process."""
    global _forbidden
    _forbidden = not any(map(item.get_closest_marker, _STARTERS))
    own = item.get_closest_marker("timeout")
    limit_s = float(own.args[0] if own else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(
        limit_s + _GRACE_S, exit=True, file=item.config.stash[_STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        _forbidden = False


def pytest_report_header(config: pytest.Config) -> str:
    return f"gRPC of servers: {served.chosen()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail a test that leaves the collector of garbage off: what the tests after it leave would fill the memory."""
    yield
    if not gc.isenabled():
        gc.enable()
        pytest.fail("the test leaves Python's collector of garbage off (gc.disable)", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Spell out bytes that are no text: tests log such, and pytest-xdist cannot send them."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
