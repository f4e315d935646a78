"""Options that the commands of `pocketmq spark` share: input, Spark session and output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ...instants import past_instant_of
from ...options import (
    Decorator,
    broker_settings,
    broker_settings_option,
    stores_argument,
    with_options,
)
from ...stores.scan.bad_records import POLICIES
from ..session import require_pyspark, spark_session
from .output import FORMS
from .reading import Reading
from .spark_errors import told_plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT: Final = click.option(
    "--output",
    "out",
    metavar="FORM:PLACE",
    help=f"Write the rows there instead of printing them. FORM is {', '.join(FORMS)}.",
)
_MASTER: Final = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master: local[*] means all cores of this machine.",
)
_CONF: Final = click.option(
    "--conf", metavar="KEY=VALUE", multiple=True, help="Setting of Spark. Repeatable."
)


def job_options(*options: Decorator) -> Decorator:
    """Return what adds OPTIONS, and those of every command here, in this order."""
    return with_options(*options, _MASTER, _CONF)


@contextmanager
def running(master: str, conf: Sequence[str]) -> Iterator[SparkSession]:
    """Give a session on MASTER with Spark's settings CONF. Errors in it become one sentence.

    It is stopped afterwards, unless it was active before.
    """
    settings = parse_conf(conf)
    require_pyspark()
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    with told_plainly():
        spark = spark_session("pocketmq", master=master, settings=settings)
        try:
            yield spark
        finally:
            if there is None:
                spark.stop()


def parse_conf(conf: Sequence[str]) -> dict[str, str]:
    """Return CONF, "KEY=VALUE" each, by key. Raises UsageError."""
    found = {}
    for setting in conf:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--conf {setting}: write KEY=VALUE")
        found[name] = value
    return found


TOPIC: Final = click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic. Repeatable."
)
SINCE: Final = click.option(
    "--since", metavar="TIME", help="Only messages stored at TIME or later."
)
UNTIL: Final = click.option("--until", metavar="TIME", help="Only messages stored before TIME.")
BAD_RECORDS: Final = click.option(
    "--bad-records",
    type=click.Choice([policy for policy in POLICIES if policy != "rows"]),
    default="fail",
    show_default=True,
    help="At damaged bytes: stop, or leave them out and continue.",
)
#: The options of every job that reads messages.
READING: Final[tuple[Decorator, ...]] = (
    stores_argument,
    broker_settings_option,
    TOPIC,
    SINCE,
    UNTIL,
    BAD_RECORDS,
)


def reading_of(given: dict[str, Any]) -> Reading:
    """Remove the options of READING from GIVEN, and return them."""
    since, until = given.pop("since"), given.pop("until")
    policy = given.pop("bad_records")
    return Reading(
        topics=given.pop("topics"),
        since_ms=None if since is None else past_instant_of(since),
        until_ms=None if until is None else past_instant_of(until),
        bad_records=policy,
        fail_on_data_loss=policy == "fail",
        settings=broker_settings(given.pop("settings")),
    )
