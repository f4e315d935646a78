"""Carriers that count, as far as the service about connections asks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketmq.proto.rpc.carrier import ConnectionFigures, ConnectionTotals


def figures(number: int, **more: Any) -> ConnectionFigures:
    """Return those of connection NUMBER: all numbers differ."""
    told: dict[str, Any] = {
        "id": number,
        "peer": f"10.0.0.1:{number}",
        "secure": number % 2 == 0,
        "age_ms": 60_000 + number,
        "streams_open": 3,
        "calls_begun": 100 + number,
        "calls_succeeded": 90,
        "calls_failed": 7,
        "bytes_read": 1_234,
        "bytes_written": 5_678_901,
        "bytes_queued": 12,
        "user_agent": "grpc-go/1.61.0",
        "last_path": "/pocketmq.v1.Broker/Status",
        "last_call_age_ms": 250,
    }
    return ConnectionFigures(**told | more)


TOTALS = ConnectionTotals(
    open=2, accepted=1_007, refused=4, closed={"peer closed": 1_000, "idle": 5}
)


class Counting:
    """Counts FOUND, and nothing else."""

    def __init__(self, *found: ConnectionFigures) -> None:
        self.found = found

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        return [one for one in self.found if one.id >= first_id][:limit]

    def connection_totals(self) -> ConnectionTotals:
        return TOTALS

    def close_connection(self, number: int) -> bool:
        return any(one.id == number for one in self.found)
