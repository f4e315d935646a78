import logging
import re

import pytest

from pocketmq.tools.log_lines import KeyValueFormatter, LogConfig, configure_logging


@pytest.fixture
def root_logger() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def formatted(**extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "pocketmq.store", "levelname": "INFO", "msg": "segment rolled", "created": 0.25}
        | extra
    )
    return KeyValueFormatter().format(record)


def test_a_line_has_time_level_name_event_and_data() -> None:
    assert formatted(file="00", took_ms=3) == (
        "1970-01-01T00:00:00.250Z INFO pocketmq.store segment rolled file=00 took_ms=3"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a b", '"a b"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("a\nb", '"a\\nb"'),
        ("ä=b", '"ä=b"'),
        (1.5, "1.5"),
    ],
)
def test_values_that_would_not_parse_are_quoted(value: object, shown: str) -> None:
    assert formatted(x=value).endswith(f" x={shown}")


def test_a_name_from_elsewhere_neither_forges_a_line_nor_reaches_the_terminal() -> None:
    line = formatted(msg="client gone\n1970 ERROR forged", topic="\x1b[2J\x9b\u202e")
    assert line == (
        "1970-01-01T00:00:00.250Z INFO pocketmq.store client gone\\n1970 ERROR forged"
        ' topic="\\u001b[2J\\u009b\\u202e"'
    )


def test_a_traceback_follows_below() -> None:
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError as error:
        text = formatted(exc_info=(type(error), error, error.__traceback__))

    first, second, *_, last = text.splitlines()
    assert first.endswith("segment rolled")
    assert second == "Traceback (most recent call last):"
    assert last == "ZeroDivisionError: no"


def test_log_lines_go_to_standard_error(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LogConfig(level="info"))

    logging.getLogger("pocketmq.x").info("it happened", extra={"count": 2})
    logging.getLogger("pocketmq.x").debug("not told")

    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\S+Z INFO pocketmq\.x it happened count=2\n", err)
