"""EndTransaction and what asks for it: outcomes are carried out once, and may be told twice."""

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from .serving import Served


async def send_half(broker: Served, **system: Any) -> None:
    broker.topic("X", "TRANSACTION", queues=1)
    reply = await broker.send("X", b"half", message_type=v2.TRANSACTION, **system)
    assert reply.status.code == v2.OK
    assert reply.entries[0].transaction_id == "id-0"
    assert not broker.records("X", 1)


async def end(broker: Served, resolution: v2.TransactionResolution, **fields: Any) -> v2.Status:
    request: dict[str, Any] = {
        "topic": {"name": "X"},
        "message_id": "id-0",
        "transaction_id": "id-0",
        "source": v2.SOURCE_CLIENT,
        "resolution": resolution,
    }
    reply = await broker.ask("EndTransaction", v2.EndTransactionRequest(**(request | fields)))
    status: v2.Status = reply.status
    return status


async def test_a_committed_message_is_there_once_however_often_it_is_committed(
    tmp_path: Path,
) -> None:
    async with Served(tmp_path) as broker:
        await send_half(broker)

        statuses = [await end(broker, v2.COMMIT) for _ in range(3)]

        assert statuses == [v2.Status(code=v2.OK, message="OK")] * 3
        (record,) = broker.records("X", 1)
        assert record.body == b"half"
        assert record.properties["PGROUP"] == "X"


async def test_a_message_that_was_rolled_back_is_not_delivered(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        await send_half(broker)

        statuses = [await end(broker, v2.ROLLBACK) for _ in range(2)]

        assert {status.code for status in statuses} == {v2.OK}
        assert not broker.records("X", 1)
        assert not broker.parts.transactions.open_count


async def test_an_outcome_is_final(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        await send_half(broker)
        await end(broker, v2.ROLLBACK)

        status = await end(broker, v2.COMMIT)

        assert status.code == v2.INVALID_TRANSACTION_ID
        assert "rolled back already" in status.message


async def test_without_a_resolution_nothing_happens(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        await send_half(broker)

        status = await end(broker, v2.TRANSACTION_RESOLUTION_UNSPECIFIED)

        assert status.code == v2.OK
        assert broker.parts.transactions.open_count == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction_id": ""}, v2.INVALID_TRANSACTION_ID),
        ({"transaction_id": "  "}, v2.INVALID_TRANSACTION_ID),
        ({"transaction_id": "never"}, v2.INVALID_TRANSACTION_ID),
        ({"topic": {"name": "other"}}, v2.INVALID_TRANSACTION_ID),
        ({"topic": {"name": "nowhere"}}, v2.TOPIC_NOT_FOUND),
        ({"topic": {"name": "a.b"}}, v2.ILLEGAL_TOPIC),
    ],
)
async def test_a_transaction_of_nobody_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: v2.Code
) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("other")
        await send_half(broker)

        assert (await end(broker, v2.COMMIT, **fields)).code == code
        assert broker.parts.transactions.open_count == 1


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (v2.SOURCE_CLIENT, v2.NOT_FOUND),
        (v2.SOURCE_SERVER_CHECK, v2.OK),
        (v2.SOURCE_UNSPECIFIED, v2.OK),
    ],
)
async def test_a_sender_has_the_time_that_it_asked_for_and_checks_any(
    tmp_path: Path, source: v2.TransactionSource, code: v2.Code
) -> None:
    async with Served(tmp_path) as broker:
        await send_half(broker, orphaned_transaction_recovery_duration={"seconds": 10})
        await broker.clock.advance(10_500)

        assert (await end(broker, v2.COMMIT, source=source)).code == code


async def test_who_sends_a_half_message_is_remembered(tmp_path: Path) -> None:
    async with Served(tmp_path) as broker:
        broker.topic("T")

        await send_half(broker)
        await broker.send("T", b"x", message_id="normal")

        assert broker.parts.clients.checks.sender("id-0") == "me"
        assert broker.parts.clients.checks.sender("normal") is None
