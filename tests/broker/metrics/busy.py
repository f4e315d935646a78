"""A page of `/metrics` on which every family stands: that of a broker to which a bit of everything has happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pocketmq.broker.messages.filters import choice_of
from pocketmq.broker.metrics.clients import GAUGES, HISTOGRAMS, ClientHistogram
from pocketmq.broker.metrics.page import MetricsPage
from pocketmq.broker.metrics.pocketmq_families import client_figures, figures
from pocketmq.broker.metrics.rocketmq_families import RocketMQFigures
from pocketmq.broker.pop.receives import ReceiveRequest, ReceiveResult
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc.pages import PageRequest

from ..service_v2.serving import Served

GROUP = "billing"
SERIES_MAX = 10_000


def status_of(served: Served, **fields: Any) -> pb.BrokerStatusReply:
    """Return what the broker would say of itself."""
    store = served.store
    return pb.BrokerStatusReply(
        **{
            "cluster": "DefaultCluster",
            "broker_name": "broker-a",
            "version": "1",
            "writable": True,
            "max_log_offset": store.max_log_offset,
            "now_ms": served.clock.unix_ms(),
            **fields,
        }
    )


def receive(served: Served, topic: str, count: int = 1, *, tag: str = "") -> list[str]:
    """Have GROUP receive up to COUNT messages of TOPIC, of those with TAG; return their handles."""
    wanted = pb.Filter(kind=pb.Filter.TAG, expression=tag) if tag else pb.Filter()
    popped: list[ReceiveResult] = []
    served.parts.pops.receive(
        ReceiveRequest(
            group=GROUP,
            topic=topic,
            client_id="me",
            batch=count,
            invisible_ms=30_000,
            choice=choice_of(wanted),
        ),
        popped.append,
    )
    return [one.handle for one in popped[0].deliveries]


async def make_busy(served: Served) -> None:
    """Have a bit of everything happen."""
    parts = served.parts
    served.topic("orders")
    served.topic("tagged", queues=1)
    for name, kind in (("fifo", "FIFO"), ("later", "DELAY"), ("tx", "TRANSACTION")):
        served.topic(name, kind)
    await served.send("orders", b"a", b"b", b"c", message_type=v2.NORMAL)
    await served.send("fifo", b"a", message_type=v2.FIFO, message_group="g")
    later: dict[str, Any] = {"seconds": served.clock.unix_ms() // 1000 + 3_000}
    await served.send("later", b"a", message_type=v2.DELAY, delivery_timestamp=later)
    for number in range(3):
        message_id = f"tx-{number}"
        sent = await served.send("tx", b"a", message_type=v2.TRANSACTION, message_id=message_id)
        if number < 2:
            request = v2.EndTransactionRequest(
                topic={"name": "tx"},
                message_id=message_id,
                transaction_id=sent.entries[0].transaction_id,
                resolution=v2.COMMIT if number else v2.ROLLBACK,
            )
            reply = await served.ask("EndTransaction", request)
            assert reply.status.code == v2.OK, reply
    await served.send("tagged", b"a", message_type=v2.NORMAL, tag="red")
    assert not receive(served, "tagged", tag="blue"), "it is stepped over"
    await served.clock.advance(1_000)
    handles = [handle for _ in range(4) for handle in receive(served, "orders")]
    assert len(handles) == 3
    served.parts.pops.forward_to_dead_letters(GROUP, "orders", handles[0], "bad")
    _connect(served)
    for name in HISTOGRAMS:
        parts.client_metrics.note(name, {"client_id": "c"}, ClientHistogram((1.0,), (1, 2), 5.0))
    for name in GAUGES:
        parts.client_metrics.note_gauge(name, {"client_id": "c"}, 3)


def _connect(served: Served) -> None:
    """Have a producer and a consumer send their settings."""
    agent = v2.UA(language=v2.JAVA, version="5.0.7")
    sessions = served.parts.clients.sessions
    for who, settings in (
        ("p", v2.Settings(publishing=v2.Publishing(), user_agent=agent)),
        (
            "c",
            v2.Settings(
                client_type=v2.PUSH_CONSUMER,
                subscription=v2.Subscription(group={"name": GROUP}),
                user_agent=agent,
            ),
        ),
    ):
        sessions.settle(sessions.record_activity(who, "JAVA"), settings)


async def page_of(
    served: Served, series_max: int = SERIES_MAX, names: str = "with-units", **status: Any
) -> str:
    """Return the page of the broker."""
    parts = served.parts

    def said() -> pb.BrokerStatusReply:
        return status_of(served, **status)

    page = MetricsPage(
        [
            lambda: figures(parts, said(), None, {}),
            lambda: client_figures(parts.client_metrics),
            RocketMQFigures(parts, said, lambda: series_max, lambda: names),
        ]
    )
    return (await page(PageRequest("GET", "/metrics", {}))).body.decode()


async def busy_page(folder: Path) -> str:
    """Return the page of a broker to which a bit of everything has happened."""
    async with Served(folder) as served:
        await make_busy(served)
        return await page_of(served)


def families(text: str) -> dict[str, Any]:
    """Return the families of a page, as Prometheus' own parser has them, by the names of the page."""
    parsed: Any = text_string_to_metric_families(text)
    return {
        family.name + ("_total" if family.type == "counter" else ""): family for family in parsed
    }


def values(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the samples called NAME of a page, by their labels without those that all have."""
    common = {"cluster", "node_id", "node_type", "otel_scope_name"}
    return {
        tuple(sorted((key, value) for key, value in sample.labels.items() if key not in common)): (
            sample.value
        )
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name
    }
