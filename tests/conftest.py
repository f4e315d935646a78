"""What every test gets: Hypothesis without a deadline, because a shared machine is sometimes slow, and with blobs that
replay a failure; servers on the carrier that `--grpc` asks for; and reports that can travel from the process that ran a
test, whatever the test has logged."""

from collections.abc import Generator

import pytest
from hypothesis import settings

from pocketmq.proto.rpc import GRPC_CHOICES

from . import served

settings.register_profile("pocketmq", deadline=None, print_blob=True)
settings.load_profile("pocketmq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grpc",
        choices=GRPC_CHOICES,
        default=served.chosen(),
        help="what speaks HTTP/2 in name servers and brokers that tests start (%(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    served.choose(str(config.getoption("--grpc")))


def pytest_report_header(config: pytest.Config) -> str:
    return f"gRPC of servers: {served.chosen()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Spell out bytes that are no text: tests log such, and pytest-xdist cannot send them."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
