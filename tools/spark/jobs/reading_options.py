"""The options that say which messages a job reads: --topic, --since, --until, --bad-records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from ...instants import past_instant_of
from ...options import broker_settings, broker_settings_option, stores_argument
from ...stores.scan.log_range import POLICIES
from .reading import Reading

TOPIC: Final = click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; may be repeated."
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
    help="Bytes that should be a record and are none: stop there, or leave them out and go on.",
)
#: The options of every job that reads messages.
READING: Final[tuple[Callable[[Any], Any], ...]] = (
    stores_argument,
    broker_settings_option,
    TOPIC,
    SINCE,
    UNTIL,
    BAD_RECORDS,
)


def reading_of(given: dict[str, Any]) -> Reading:
    """Return what the options GIVEN say, and take them out."""
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
