"""Where our answers to recorded calls differ from Apache's on purpose: what differs in which case.

docs/differences-in-answers.md says of each kind why. A test holds the two lists equal, and the lines to what is
observed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Kind: the form of lines that may be observed in any case.
EVERYWHERE: Final = {
    "settings are sent twice": re.compile(r"settings: come again"),
    "endpoints are echoed": re.compile(
        r"(message_queues\[\]|assignments\[\]\.message_queue)\.broker\.endpoints\.addresses\[\]\.port: 86[89]1 → \d+"
    ),
    "measurements come here": re.compile(r"settings\.metric\.(on: - → True|endpoints: - → {…})"),
    "Node.js gets another back-off": re.compile(
        r"settings\.backoff_policy\.(customized_backoff: {…} → -|exponential_backoff: - → {…})"
    ),
    "internal properties do not leak": re.compile(
        r"(\w+\.)?message\.user_properties\."
        r"(__SHARDINGKEY|TRACE_CONTEXT|__transactionId__|TRANSACTION_CHECK_TIMES|INNER_MULTI_DISPATCH): .* → -"
    ),
    "the invisible duration is returned": re.compile(
        r"message\.system_properties\.invisible_duration: - → \d+s"
    ),
}

_LATER: Final = "after 0.0 s: comes later"


def _code(theirs: str, ours: str) -> str:
    return f"status.code: {theirs} → {ours}"


def _codes(theirs: str, ours: str) -> tuple[str, str]:
    """Return the lines of an acknowledgement whose only entry differs."""
    return _code(theirs, ours), f"entries[].{_code(theirs, ours)}"


_DEAD: Final = _codes("OK", "INVALID_RECEIPT_HANDLE")
_MALFORMED: Final = _codes("INTERNAL_SERVER_ERROR", "INVALID_RECEIPT_HANDLE")
_SERVED: Final = "grpc status: UNIMPLEMENTED → OK"
_HANDLE_RETURNED: Final = "receipt_handle: - → *"

#: Kind: (cases, lines of `comparison.differences` …).
DEVIATIONS: Final[dict[str, list[tuple[str, ...]]]] = {
    "endpoints are echoed": [
        (
            "query-route-22",
            "message_queues[].broker.endpoints.scheme: IPv4 → DOMAIN_NAME",
            "message_queues[].broker.endpoints.addresses[].host: 127.0.0.1 → localhost",
        ),
        ("query-route-24", "message_queues[].broker.endpoints.addresses: 1 → 2"),
        (
            "cluster-query-route-25 cluster-query-route-26",
            "message_queues[].broker.endpoints.addresses: - → {…}",
        ),
        (
            "cluster-query-assignment-15",
            "assignments[].message_queue.broker.endpoints.addresses: - → {…}",
        ),
        ("query-route-27", _code("INTERNAL_SERVER_ERROR", "OK"), "message_queues: - → {…}"),
    ],
    "clients without settings are served": [
        (
            "heartbeat-01 heartbeat-02 heartbeat-05 heartbeat-06 heartbeat-12 heartbeat-21 heartbeat-22"
            " heartbeat-23 heartbeat-24",
            _code("UNRECOGNIZED_CLIENT_TYPE", "OK"),
        ),
        ("heartbeat-03", _code("CLIENT_ID_REQUIRED", "OK")),
        ("receive-01", _LATER, _code("INTERNAL_SERVER_ERROR", "MESSAGE_NOT_FOUND")),
    ],
    "groups are made when they are used": [
        ("heartbeat-16", _code("ILLEGAL_CONSUMER_GROUP", "OK")),
        ("telemetry-13", "grpc status: INVALID_ARGUMENT → OK", "settings: comes"),
    ],
    "topics are checked when they are used": [
        ("telemetry-19", "grpc status: INVALID_ARGUMENT → OK", "settings: comes"),
    ],
    "more types of client": [
        ("telemetry-09 telemetry-11", "grpc status: INTERNAL → OK", "settings: comes"),
    ],
    "an unknown topic is TOPIC_NOT_FOUND": [
        (
            "send-85 delay-recall-10",
            _code("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "TOPIC_NOT_FOUND"),
        ),
        (
            "send-90 send-91 receive-46 transaction-15",
            _code("INTERNAL_SERVER_ERROR", "TOPIC_NOT_FOUND"),
        ),
        ("ack-21", _code("INTERNAL_SERVER_ERROR", "TOPIC_NOT_FOUND"), "entries: {…} → -"),
        ("ack-36", _code("INTERNAL_SERVER_ERROR", "TOPIC_NOT_FOUND")),
        ("dead-letter-06", _code("OK", "TOPIC_NOT_FOUND")),
        ("lite-14 cluster-lite-14", _code("ILLEGAL_TOPIC", "TOPIC_NOT_FOUND")),
    ],
    "faults have their own codes": [
        ("send-36", _code("INTERNAL_SERVER_ERROR", "BAD_REQUEST")),
        ("send-95", "grpc status: UNKNOWN → INVALID_ARGUMENT"),
        ("ack-20 receive-31", _code("INTERNAL_SERVER_ERROR", "BAD_REQUEST")),
        ("telemetry-22", "grpc status: INTERNAL → INVALID_ARGUMENT"),
        ("receive-38", _code("INTERNAL_SERVER_ERROR", "ILLEGAL_FILTER_EXPRESSION")),
        ("receive-52", _code("INTERNAL_SERVER_ERROR", "FORBIDDEN")),
        (
            "delay-recall-07 delay-recall-08 delay-recall-09",
            _code("INTERNAL_SERVER_ERROR", "BAD_REQUEST"),
        ),
        ("delay-recall-14", _code("INTERNAL_SERVER_ERROR", "NOT_FOUND")),
    ],
    "a batch has an entry per message": [
        (
            "send-43",
            "entries: 1 → 3",
            "entries[].message_id: FD00000000000000000000000000000218035FFD2B27678B47D7000C"
            " → 01AABBCCDDEEFF44020A0103480000002B",
        ),
        (
            "send-44",
            "entries: 1 → 2",
            "entries[].message_id: FD00000000000000000000000000000218035FFD2B27678B47D9000D"
            " → 01AABBCCDDEEFF44020A0103480000002E",
        ),
        (
            "send-45",
            "entries: 1 → 2",
            "entries[].message_id: FD00000000000000000000000000000218035FFD2B27678B47E1000E"
            " → 01AABBCCDDEEFF44020A01034800000030",
        ),
        (
            "cluster-send-43",
            "entries: 1 → 3",
            "entries[].message_id: 01AABBCCDDEEFF499D0A0107940000002B,01AABBCCDDEEFF499D0A0107940000002C,"
            "01AABBCCDDEEFF499D0A0107940000002D → 01AABBCCDDEEFF499D0A0107940000002B",
        ),
        (
            "cluster-send-44",
            "entries: 1 → 2",
            "entries[].message_id: 01AABBCCDDEEFF499D0A0107940000002E,01AABBCCDDEEFF499D0A0107940000002F"
            " → 01AABBCCDDEEFF499D0A0107940000002E",
        ),
        (
            "cluster-send-45",
            "entries: 1 → 2",
            "entries[].message_id: 01AABBCCDDEEFF499D0A01079400000030,01AABBCCDDEEFF499D0A01079400000031"
            " → 01AABBCCDDEEFF499D0A01079400000030",
        ),
    ],
    "any messages make a batch": [
        ("send-46 send-47", _code("INTERNAL_SERVER_ERROR", "OK"), "entries: - → {…}"),
    ],
    "an empty receive does not wait": [
        ("receive-30", "after 5.0 s: comes sooner"),
    ],
    "large messages wait for the next receive": [
        ("receive-09", "message …55: is missing", "message …47: comes", "message …57: comes"),
        (
            "receive-10",
            _code("OK", "MULTIPLE_RESULTS"),
            "entries[].status.code: OK → INVALID_RECEIPT_HANDLE",
        ),
    ],
    "order is kept by message group": [
        (
            "receive-68",
            "stream: status delivery_timestamp → status message delivery_timestamp",
            "after 5.0 s: comes sooner",
            _code("MESSAGE_NOT_FOUND", "OK"),
            "message …6B: comes",
        ),
        ("receive-70", "message …6B: is missing"),
        ("receive-71", _code("OK", "INVALID_RECEIPT_HANDLE")),
        (
            "receive-73",
            "stream: status message delivery_timestamp → status delivery_timestamp",
            "after 1.0 s: comes later",
            _code("OK", "MESSAGE_NOT_FOUND"),
            "message …6B: is missing",
            "message …6C: is missing",
        ),
        ("receive-74 receive-75", *_DEAD),
    ],
    "messages are redelivered on time": [
        ("receive-81", "after 3.2 s: comes sooner"),
        ("receive-85", "after 2.7 s: comes sooner"),
        ("ack-40", "after 2.2 s: comes sooner"),
        ("dead-letter-26", "after 3.6 s: comes sooner"),
    ],
    "malformed handles are INVALID_RECEIPT_HANDLE": [
        ("ack-14 ack-15", *_MALFORMED),
        ("ack-17", *_DEAD),
        ("ack-18", "entries[].status.code: INTERNAL_SERVER_ERROR → INVALID_RECEIPT_HANDLE"),
        (
            "ack-32 ack-33 dead-letter-03 dead-letter-04",
            _code("INTERNAL_SERVER_ERROR", "INVALID_RECEIPT_HANDLE"),
        ),
    ],
    "a handle is of its group and topic": [
        ("ack-22 ack-23 ack-24", *_DEAD),
        ("ack-37", _code("OK", "INVALID_RECEIPT_HANDLE")),
    ],
    "an old handle dies": [
        ("ack-28", _code("OK", "INVALID_RECEIPT_HANDLE")),
        ("ack-29", *_DEAD),
        ("ack-46", "message …74: is missing"),
        ("cluster-ack-46", "message …6A: is missing"),
        ("ack-48 ack-49", *_DEAD),
    ],
    "a refused change returns the handle": [
        ("ack-32 ack-34 ack-35 ack-36 ack-38 ack-43", _HANDLE_RETURNED),
    ],
    "what is acknowledged stays so": [
        ("ack-42", *_codes("INVALID_RECEIPT_HANDLE", "OK")),
    ],
    "a message is forwarded once": [
        ("dead-letter-05", _code("OK", "INVALID_RECEIPT_HANDLE")),
        ("dead-letter-13", "message …78: is missing", "message …00: is missing"),
        ("dead-letter-14 dead-letter-16 dead-letter-17", *_DEAD),
    ],
    "dead letters name their origin": [
        (
            "dead-letter-13 dead-letter-29",
            "message.system_properties.dead_letter_queue: - → {…}",
        ),
    ],
    "EndTransaction is idempotent, and reports": [
        ("transaction-08 transaction-23", _code("INTERNAL_SERVER_ERROR", "OK")),
        (
            "transaction-10 transaction-14 transaction-16 transaction-18",
            _code("INTERNAL_SERVER_ERROR", "INVALID_TRANSACTION_ID"),
        ),
    ],
    "transactions are known until they end": [
        ("transaction-24", _code("INTERNAL_SERVER_ERROR", "OK")),
        ("transaction-25", "message …7F: comes"),
        ("cluster-transaction-25", "message …73: comes"),
    ],
    "transactions are checked on time": [
        (
            "transaction-28",
            "after 21.6 s: comes sooner",
            "check …7D: comes",
        ),
        (
            "cluster-transaction-28",
            "after 14.2 s: comes sooner",
            "check …70: comes",
        ),
    ],
    "pulls and offsets are served": [
        (
            "pull-offset-01",
            _SERVED,
            "status: comes",
            "message: comes",
            "next_offset: comes",
        ),
        ("pull-offset-02 pull-offset-03 pull-offset-04", _SERVED, "status: comes"),
        ("pull-offset-05 pull-offset-06", _SERVED, "offset: comes"),
    ],
    "health is reported": [
        ("pull-offset-09", _SERVED, "status: comes"),
    ],
    "lite consumers are served": [
        (
            "lite-03 lite-04 lite-05 lite-06 lite-10 lite-15 lite-16 lite-18",
            _code("INTERNAL_SERVER_ERROR", "OK"),
        ),
        ("cluster-lite-17", "message …26: comes"),
        (
            "lite-17",
            "stream: status delivery_timestamp → status message delivery_timestamp",
            _code("INTERNAL_SERVER_ERROR", "OK"),
            "message …26: comes",
            "message …83: comes",
            "message …84: comes",
        ),
    ],
}


#: Cases of a proxy that is a process of its own, which answers them as we do, unlike the one in a broker. Of any other
#: difference from the latter, DEVIATIONS has a row.
LIKE_A_PROXY: Final = (
    "cluster-query-route-22 cluster-query-route-24 cluster-telemetry-13"
    " cluster-send-90 cluster-send-91 cluster-ack-17 cluster-ack-49"
)


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
    on_purpose: dict[str, set[str]] = {case: set() for case in LIKE_A_PROXY.split()}
    for case, _, lines in deviations():
        on_purpose.setdefault(case, set()).update(lines)
    wrong = {}
    for case, found in observed.items():
        particular = {line for line in found if kind_everywhere(line) is None}
        expected = on_purpose.get(case, on_purpose.get(_local(case), set()))
        if particular != expected:
            wrong[case] = {
                "not on purpose": particular - expected,
                "not observed": expected - particular,
            }
    return wrong


def _local(case: str) -> str:
    """Return the case that CASE, one of a proxy that is a process of its own, repeats; or a name that is none."""
    return case.removeprefix("cluster-") if "lite" not in case else ""
