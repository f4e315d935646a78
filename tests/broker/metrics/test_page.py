"""`GET /metrics`: an answer in plain HTTP, in a format that Prometheus reads."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pocketmq.broker.metrics.clients import ClientHistogram, ClientMetrics
from pocketmq.broker.metrics.page import MetricsPage, PageFigure
from pocketmq.broker.metrics.pocketmq_families import client_figures
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.rpc.http1_requests import RequestReader, head_of

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost:8081\r\nAccept: */*"


def page(*figures: PageFigure) -> tuple[MetricsPage, ClientMetrics]:
    clients = ClientMetrics(VirtualClock(0).now_ms)
    return MetricsPage([lambda: figures, lambda: client_figures(clients)]), clients


async def answered(page: MetricsPage, head: bytes = REQUEST) -> tuple[str, dict[str, str], str]:
    """Return status, headers and body of the answer to HEAD."""
    reader = RequestReader("peer", secure=False)
    reader.feed(head + b"\r\n\r\n")
    asked = reader.next()
    assert asked is not None
    shown = await page(asked)
    text = head_of(shown, keep=False) + (b"" if asked.method == "HEAD" else shown.body)
    top, _, body = text.decode().partition("\r\n\r\n")
    status, *lines = top.split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families: Any = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


async def test_figures_are_read_back() -> None:
    found, _ = page(
        PageFigure("counter", "a_total", "A.", 7),
        PageFigure("gauge", "b_ratio", "B.", 0.25, (("broker", 'with "quotes"\n'),)),
    )

    status, headers, body = await answered(found)

    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert (headers["Content-Length"], headers["Connection"]) == (str(len(body)), "close")
    values = samples(body)
    assert values["a_total", frozenset()] == 7
    assert values["b_ratio", frozenset({("broker", 'with "quotes"\n')})] == 0.25
    assert "python_info" not in body


async def test_histograms_of_clients_count_up_to_each_bound() -> None:
    found, clients = page()
    labels = {"client_id": "c", "topic": "T", "language": "GO", "invocation_status": "success"}
    clients.note("rocketmq_send_cost_time", labels, ClientHistogram((1.0, 5.0), (3, 2, 1), 20.5))
    clients.note_gauge("rocketmq_consumer_cached_bytes", labels, 9)

    values = samples((await answered(found))[2])

    who = {
        ("client", "c"),
        ("topic", "T"),
        ("group", ""),
        ("language", "GO"),
        ("status", "success"),
    }
    name = "rocketmq_send_cost_time"
    buckets = {
        bound: values[f"{name}_bucket", frozenset(who | {("le", bound)})]
        for bound in ("1.0", "5.0", "+Inf")
    }
    assert buckets == {"1.0": 3, "5.0": 5, "+Inf": 6}
    assert values[f"{name}_count", frozenset(who)] == 6
    assert values[f"{name}_sum", frozenset(who)] == 20.5
    assert values["rocketmq_consumer_cached_bytes", frozenset(who)] == 9
    assert values["pocketmq_broker_client_series_dropped_total", frozenset()] == 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /metrics?name=x HTTP/1.0", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\nHost: a", "HTTP/1.1 404 Not Found"),
        (b"GET /metrics/x HTTP/1.0", "HTTP/1.1 404 Not Found"),
        (b"GARBAGE /metrics HTTP/1.0", "HTTP/1.1 405 Method Not Allowed"),
    ],
)
async def test_only_the_page_is_answered(head: bytes, status: str) -> None:
    assert (await answered(page()[0], head))[0] == status


async def test_who_asks_for_the_head_gets_the_head() -> None:
    found, _ = page(PageFigure("gauge", "a", "A.", 1))

    status, headers, body = await answered(found, b"HEAD /metrics HTTP/1.0")

    assert (status, body) == ("HTTP/1.1 200 OK", "")
    assert int(headers["Content-Length"]) == len((await answered(found))[2])
