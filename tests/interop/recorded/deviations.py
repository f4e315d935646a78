"""Where our answers to recorded calls differ from Apache's on purpose: what differs in which case.

docs/official-clients.md says of each kind why; a test holds the two lists equal, and the lines to what is observed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Kind: the form of lines that may be observed in any case.
EVERYWHERE: Final = {
    "settings come again": re.compile(r"settings: come again"),
    "endpoints are echoed": re.compile(
        r"(message_queues\[\]|assignments\[\]\.message_queue)\.broker\.endpoints\.addresses\[\]\.port: 8681 → \d+"
    ),
    "measurements come here": re.compile(r"settings\.metric\.(on: - → True|endpoints: - → {…})"),
    "Node.js gets another back-off": re.compile(
        r"settings\.backoff_policy\.(customized_backoff: {…} → -|exponential_backoff: - → {…})"
    ),
}

#: Kind: (cases, lines of `comparison.differences` …).
DEVIATIONS: Final[dict[str, list[tuple[str, ...]]]] = {
    "endpoints are echoed": [
        (
            "query-route-22",
            "message_queues[].broker.endpoints.scheme: IPv4 → DOMAIN_NAME",
            "message_queues[].broker.endpoints.addresses[].host: 127.0.0.1 → localhost",
        ),
        (
            "query-route-24",
            "message_queues[].broker.endpoints.addresses: 1 → 2",
        ),
        ("query-route-27", "status.code: INTERNAL_SERVER_ERROR → OK", "message_queues: - → {…}"),
    ],
    "clients without settings are served": [
        (
            "heartbeat-01 heartbeat-02 heartbeat-05 heartbeat-06 heartbeat-12 heartbeat-21 heartbeat-22"
            " heartbeat-23 heartbeat-24",
            "status.code: UNRECOGNIZED_CLIENT_TYPE → OK",
        ),
        ("heartbeat-03", "status.code: CLIENT_ID_REQUIRED → OK"),
    ],
    "groups are made when they are used": [
        ("heartbeat-16", "status.code: ILLEGAL_CONSUMER_GROUP → OK"),
        ("telemetry-13", "grpc status: INVALID_ARGUMENT → OK", "settings: comes"),
    ],
    "more types of client": [
        ("telemetry-09 telemetry-11", "grpc status: INTERNAL → OK", "settings: comes"),
    ],
}


def deviations() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield case, kind and lines."""
    for kind, rows in DEVIATIONS.items():
        for cases, *lines in rows:
            for case in cases.split():
                yield case, kind, tuple(lines)


def kind_everywhere(line: str) -> str | None:
    """Return the kind of a LINE that may be observed in any case; None: it may not."""
    return next((kind for kind, form in EVERYWHERE.items() if form.fullmatch(line)), None)


def unexpected(observed: dict[str, list[str]]) -> dict[str, dict[str, set[str]]]:
    """Return what in the lines OBSERVED of cases is not on purpose, and what of the latter is not observed."""
    on_purpose: dict[str, set[str]] = {}
    for case, _, lines in deviations():
        on_purpose.setdefault(case, set()).update(lines)
    wrong = {}
    for case, found in observed.items():
        particular = {line for line in found if kind_everywhere(line) is None}
        expected = on_purpose.get(case, set())
        if particular != expected:
            wrong[case] = {
                "not on purpose": particular - expected,
                "not observed": expected - particular,
            }
    return wrong
