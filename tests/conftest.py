"""What every test gets: Hypothesis without a deadline, because a shared machine is sometimes slow, and with blobs that
replay a failure; and reports that can travel from the process that ran a test, whatever the test has logged."""

from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("pocketmq", deadline=None, print_blob=True)
settings.load_profile("pocketmq")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Spell out bytes that are no text: tests log such, and pytest-xdist cannot send them."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
