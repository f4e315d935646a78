"""`bench idle-receives`: ten thousand waiting ReceiveMessage calls of official simple consumers.

A thousand per connection, with a long-polling time beyond the measurement; also the cost of accepting them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from ...client import Admin
from ...proto.gen import rocketmq_v2_pb2 as v2
from .idle_consumers import AIM_BYTES, CONSUMERS_SETTLE_S
from .measure import BenchConditions, Figure
from .raw_connection import RawConnection
from .servers import TOPIC, server_with_topic

CONNECTIONS: Final = 10
EACH: Final = 1_000
_GROUP: Final = "readers"
_POLL_S: Final = 60
_RECEIVES_LEAST_S: Final = 20.0
_MOST_S: Final = 40.0
_RECEIVES_AIM_PERCENT: Final = 2.0


def idle_receives(conditions: BenchConditions) -> Figure:
    """Measure memory and CPU time of a broker that holds idle receives."""
    count = CONNECTIONS * EACH
    seconds = min(max(_RECEIVES_LEAST_S, conditions.seconds), _MOST_S)
    with server_with_topic(conditions.folder) as server, ExitStack() as stack:
        with Admin(server.nameserver) as admin:
            admin.create_group(_GROUP)
        before_bytes, before_s = server.rss_bytes(), server.cpu_seconds()
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(RawConnection(server.ready["broker"]))
            for call in connection.calls(
                "ReceiveMessage", [_request()] * EACH, time_s=_POLL_S + 10
            ):
                connection.send(call)
        time.sleep(CONSUMERS_SETTLE_S)
        taken_us = (server.cpu_seconds() - before_s) / count * 1e6
        held_s = server.cpu_seconds()
        time.sleep(seconds)
        percent = (server.cpu_seconds() - held_s) / seconds * 100
        more_bytes = server.rss_bytes() - before_bytes
        figure = Figure(
            name="idle-receives",
            what=f"{count:,} ReceiveMessage that wait, {EACH:,} a connection",
            server_rss_bytes=server.rss_bytes(),
            aim=(percent, _RECEIVES_AIM_PERCENT, False),
        )
    figure.facts = {
        "receives": count,
        "more_bytes": more_bytes,
        "more_bytes_aim_met": more_bytes <= AIM_BYTES,
        "cpu_percent_of_a_core": percent,
        "us_to_take_one": taken_us,
    }
    figure.notes = [
        f"{more_bytes / 1e6:.1f} MB more than before them, aim ≤ {AIM_BYTES / 1e6:.0f}",
        f"{percent:.2f} % of a core (aim < {_RECEIVES_AIM_PERCENT:.0f}), {seconds:.0f} s; {taken_us:.0f} µs each taken",
    ]
    return figure


def _request() -> Any:
    topic = v2.Resource(name=TOPIC)
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name=_GROUP),
        message_queue=v2.MessageQueue(topic=topic),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromSeconds(30)
    request.long_polling_timeout.FromSeconds(_POLL_S)
    return request
