"""Options that the commands of `pocketmq spark` share: which stores, on which Spark, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..session import require_pyspark, spark_session
from .failures import told_plainly
from .outputs import FORMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])

OUT: Final = click.option(
    "--out",
    metavar="FORM:PLACE",
    help=f"Write the rows there instead of printing them: {', '.join(FORMS)}.",
)
_MASTER: Final = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: this machine's cores, or a cluster's master.",
)
_CONF: Final = click.option(
    "--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated."
)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Add OPTIONS, and those of every command here, in this order."""

    def add(function: Function) -> Function:
        for option in reversed((*options, _MASTER, _CONF)):
            function = option(function)
        return function

    return add


@contextmanager
def running(master: str, conf: Sequence[str]) -> Iterator[SparkSession]:
    """Give a session on MASTER with Spark's settings CONF; what fails in it is told in a sentence.

    It is stopped afterwards, unless it was there before.
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
    """Return CONF, each "KEY=VALUE", by key; UsageError for anything else."""
    found = {}
    for setting in conf:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--conf {setting}: write it as KEY=VALUE")
        found[name] = value
    return found
