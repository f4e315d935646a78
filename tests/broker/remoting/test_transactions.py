"""Transactions, request and reply, and lookups of classic clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.message_id import decode_offset_message_id
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode

from .classic import Classic, records, sent, serving

HALF = {"UNIQ_KEY": "TX1", "TRAN_MSG": "true", "PGROUP": "pg"}


async def half(client: Classic, **properties: str) -> dict[str, object]:
    """Send a half message; return the fields of the request that ends its transaction."""
    answer = await client.send("orders", b"tx", properties=HALF | properties, f=4)
    assert answer.code == 0, answer
    at = decode_offset_message_id(answer.fields["msgId"])[2]
    return {
        "producerGroup": "pg", "tranStateTableOffset": answer.fields["queueOffset"], "commitLogOffset": at,
        "fromTransactionCheck": "false", "msgId": "TX1", "transactionId": "TX1", "bname": "broker-a",
    }  # fmt: skip


@pytest.mark.parametrize(("said", "bodies"), [(8, [b"tx"]), (12, []), (0, [])])
async def test_a_transaction_ends_as_its_producer_says(
    tmp_path: Path, said: int, bodies: list[bytes]
) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        fields = await half(client)
        assert not records((await client.pull("orders")).body)
        answer = await client.ask(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": said})
        assert (answer.code, answer.remark) == (0, "")

        found = records((await client.pull("orders")).body)
        assert [one.body for one in found] == bodies
        assert broker._running is not None
        assert broker._running.parts.transactions.open_count == (said == 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"commitOrRollback": 5}, ResponseCode.SYSTEM_ERROR),
        ({"commitLogOffset": 1 << 40}, ResponseCode.SYSTEM_ERROR),
        ({"commitLogOffset": 7}, ResponseCode.SYSTEM_ERROR),
        ({"transactionId": "other"}, ResponseCode.SYSTEM_ERROR),
        ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_wrong_end_changes_nothing(
    tmp_path: Path, changes: dict[str, object], code: int
) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        fields = await half(client) | {"commitOrRollback": 8} | changes
        answer = await client.ask(RequestCode.END_TRANSACTION, fields)

        assert (answer.code, bool(answer.remark)) == (code, True)
        assert not records((await client.pull("orders")).body)


async def test_a_producer_is_asked_about_an_open_transaction(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, transaction_timeout_ms=50) as broker,
        await Classic.connect(broker) as client,
    ):
        await client.beat(producers=("pg",))
        fields = await half(client)
        asked = await client.next_request(RequestCode.CHECK_TRANSACTION_STATE)
        (record,) = records(asked.body)
        assert (record.topic, record.body, record.properties["PGROUP"]) == ("orders", b"tx", "pg")  # fmt: skip
        assert (asked.fields["transactionId"], asked.flag) == ("TX1", 2)
        fields |= {
            "commitLogOffset": asked.fields["commitLogOffset"],
            "tranStateTableOffset": asked.fields["tranStateTableOffset"],
            "fromTransactionCheck": "true",
            "commitOrRollback": 8,
        }
        assert (await client.ask(RequestCode.END_TRANSACTION, fields)).code == 0
        assert [one.body for one in records((await client.pull("orders")).body)] == [b"tx"]
        assert broker._running is not None
        assert broker._running.parts.transactions.listening == 1
        await client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "me@1", "producerGroup": "pg"})
        assert broker._running.parts.transactions.listening == 0


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_reply_is_passed_to_the_client_of_its_request(tmp_path: Path, code: int) -> None:
    async with (
        serving(tmp_path) as broker,
        await Classic.connect(broker, "asker@1") as asker,
        await Classic.connect(broker, "replier@1") as replier,
    ):
        await asker.beat(producers=("pg",))
        properties = {"REPLY_TO_CLIENT": "asker@1", "CORRELATION_ID": "c1", "MSG_TYPE": "reply"}
        fields = sent("c_REPLY_TOPIC", 0, properties)
        if code == RequestCode.SEND_REPLY_MESSAGE:
            names = {"a": "producerGroup", "b": "topic", "e": "queueId", "f": "sysFlag",
                     "g": "bornTimestamp", "h": "flag", "i": "properties"}  # fmt: skip
            fields = {names[short]: value for short, value in fields.items() if short in names}
        answer = await replier.ask(code, fields, b"reply")
        passed = await asker.next_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)

        assert answer.code == 0
        assert (passed.body, passed.fields["topic"], passed.flag) == (b"reply", "c_REPLY_TOPIC", 2)
        assert "CORRELATION_ID\x01c1" in passed.fields["properties"]
        await asker.close()
        while (await replier.ask(code, fields, b"late")).code == 0:
            pass
        assert broker.store.max_log_offset == 0


async def test_messages_are_found_by_key_and_by_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        for number, key in enumerate(("k1", "k2", "k1")):
            properties = {"UNIQ_KEY": f"ID{number}", "KEYS": key}
            await client.send("orders", b"%d" % number, properties=properties)
        query = {
            "topic": "orders",
            "maxNum": 10,
            "beginTimestamp": 0,
            "endTimestamp": (1 << 63) - 1,
        }
        for key, bodies in (("k1", [b"0", b"2"]), ("ID1", [b"1"]), ("k3", [])):
            answer = await client.ask(RequestCode.QUERY_MESSAGE, query | {"key": key})
            assert [one.body for one in records(answer.body)] == bodies
            assert answer.code == (0 if bodies else ResponseCode.QUERY_NOT_FOUND)
        missing = await client.ask(RequestCode.QUERY_MESSAGE, query | {"topic": "none", "key": "k"})
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        for offset in (1, 1 << 50):
            answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
            assert answer.code == ResponseCode.SYSTEM_ERROR
