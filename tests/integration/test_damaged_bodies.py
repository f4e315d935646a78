"""A byte that changes in the log of a serving process: the others come, it is counted, and told on /metrics."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from pocketmq.client import Message, Producer, PullConsumer

from ..damage import BODY_AT, flip_file
from ..served import ServerProcess, need_own

pytestmark = pytest.mark.processes


def test_a_byte_that_changes_underneath_a_server_costs_one_message(tmp_path: Path) -> None:
    need_own("a port of grpcio has no /metrics")
    with ServerProcess(tmp_path / "store") as server:
        with Producer(nameservers=server.nameserver) as producer:
            bodies = [b"body %d" % number for number in range(5)]
            receipts = [producer.send(Message("orders", body, queue=0)) for body in bodies]
        log = tmp_path / "store/commitlog" / f"{0:020d}"
        flip_file(log, receipts[2].log_offset + BODY_AT)

        with PullConsumer("billing", "orders", nameservers=server.nameserver) as consumer:
            found: list[bytes] = []
            while len(found) < 4:
                found += [message.body for message in consumer.poll(timeout_ms=10_000)]
            assert found == [body for body in bodies if body != b"body 2"]
            assert consumer.metrics().lost == 1
        with urllib.request.urlopen(f"http://{server.ready['broker']}/metrics", timeout=10) as page:
            shown = dict(
                line.split()
                for line in page.read().decode().splitlines()
                if line[:9] == "pocketmq_" and "{" not in line
            )

        assert shown["pocketmq_store_damaged_records_total"] == "1.0"
        assert shown["pocketmq_broker_lost_messages_total"] == "1.0"
        kept = list((tmp_path / "store/pocketmq/broken").iterdir())
        assert [path.name for path in kept] == [f"log-{receipts[2].log_offset:020d}"]
