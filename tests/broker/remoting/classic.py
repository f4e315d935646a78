"""A whole broker, and a classic client that speaks remoting to it, frame by frame."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

from pocketmq.broker.broker import Broker
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Record, decode_record
from pocketmq.proto.record_run import walk
from pocketmq.proto.remoting.client import open_tcp, read_command
from pocketmq.proto.remoting.codes import RequestCode
from pocketmq.proto.remoting.command import REQUEST_MAX, RemotingCommand, encode
from pocketmq.proto.remoting.fastjson import dumps, loads
from pocketmq.store.os_disk import OsDisk

from ...integration.whole_broker import store_config
from ...served import broker_config, need_own

SUSPEND, SUBSCRIPTION = 2, 4
ANSWER_S = 10


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Broker]:
    """Serve a new broker, without a name server."""
    need_own("grpcio serves gRPC only")
    config = broker_config(port=0, nameservers=(), **settings)
    broker = Broker.build(config, store_config(folder), disk=OsDisk(), clock=SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def signature(secret: str, fields: Mapping[str, str], body: bytes = b"") -> str:
    """Return the field `Signature` of a request with the other FIELDS, as Apache RocketMQ's clients make it."""
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    return base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha1).digest()).decode()


def signed(user: str, secret: str, fields: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Return FIELDS with the user, and the signature of FIELDS and BODY."""
    named = {**fields, "AccessKey": user}
    return {**named, "Signature": signature(secret, named, body)}


class Classic:
    """A client with the id NAME. Requests of the broker are in `received`. With `sign_as`, requests are signed."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._credentials: tuple[str, str] | None = None
        self._reader, self.writer = reader, writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.received: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(cls, broker: Broker, name: str = "me@1") -> Self:
        return cls(name, *await open_tcp(broker.address, 5, limit=1 << 22))

    def sign_as(self, user: str, secret: str = "") -> Self:
        """Sign requests from now on; without SECRET with that of `USER-secret`."""
        self._credentials = user, secret or f"{user}-secret"
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))
        self.writer.close()

    async def _read(self) -> None:
        while (command := await read_command(self._reader, REQUEST_MAX)) is not None:
            if command.is_answer:
                self._waiting.pop(command.opaque).set_result(command)
            else:
                self.received.put_nowait(command)

    def begin(
        self,
        code: int,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        is_json: bool = True,
        flag: int = 0,
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request; return its answer to come."""
        number = next(self._numbers)
        texts = {name: str(value) for name, value in (fields or {}).items()}
        if self._credentials is not None:
            texts = signed(*self._credentials, texts, body)
        command = RemotingCommand(
            code=code, opaque=number, fields=texts, body=body, is_json=is_json, flag=flag,
            language="JAVA",
        )  # fmt: skip
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        if not flag:
            self._waiting[number] = future
        self.writer.write(encode(command))
        return future

    async def ask(self, code: int, fields: Any = None, body: bytes = b"", **more: Any) -> Any:
        """Return the answer to a request."""
        return await asyncio.wait_for(self.begin(code, fields, body, **more), ANSWER_S)

    async def next_request(self, code: int) -> RemotingCommand:
        """Return the next request of the broker with CODE."""
        while True:
            command = await asyncio.wait_for(self.received.get(), ANSWER_S)
            if command.code == code:
                return command

    async def beat(
        self, *consumers: dict[str, Any], producers: tuple[str, ...] = (), **more: Any
    ) -> RemotingCommand:
        """Send a heartbeat of CONSUMERS (see `consumer`) and producer groups."""
        body = {
            "clientID": self.name,
            "consumerDataSet": list(consumers),
            "producerDataSet": [{"groupName": group} for group in producers],
            **more,
        }
        answer: RemotingCommand = await self.ask(
            RequestCode.HEART_BEAT, body=json.dumps(body).encode()
        )
        return answer

    async def send(
        self, topic: str, body: bytes, queue: int = 0, properties: Any = None, **more: Any
    ) -> RemotingCommand:
        """Send a message."""
        fields = sent(topic, queue, properties) | more
        answer: RemotingCommand = await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        return answer

    async def pull(
        self, topic: str, queue: int = 0, offset: int = 0, group: str = "g", **more: Any
    ) -> RemotingCommand:
        """Pull from a queue."""
        answer: RemotingCommand = await self.ask(
            RequestCode.PULL_MESSAGE, pulled(topic, queue, offset, group) | more
        )
        return answer

    async def queue_offset(self, code: int, topic: str, queue: int = 0, **more: Any) -> str:
        """Return the field "offset" of an answer about a queue."""
        answer = await self.ask(code, {"topic": topic, "queueId": queue} | more)
        assert answer.code == 0, answer
        found: str = answer.fields["offset"]
        return found


def consumer(group: str, *topics: str, expression: str = "*", **more: Any) -> dict[str, Any]:
    """Return a consumer of GROUP as an entry of a heartbeat."""
    return {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": expression,
                "subVersion": 1,
                "tagsSet": [],
                "topic": topic,
            }
            | more
            for topic in topics
        ],
        "unitMode": False,
    }


def sent(topic: str, queue: int = 0, properties: Any = None) -> dict[str, Any]:
    """Return the fields of a send."""
    return {
        "a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1_700_000_000_000, "h": 0,
        "i": encode_properties(properties or {"UNIQ_KEY": "ID1", "WAIT": "true"}).decode().removesuffix("\x02"),
        "j": 0, "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


def pulled(topic: str, queue: int, offset: int, group: str) -> dict[str, Any]:
    """Return the fields of a pull of everything that does not wait."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG", "bname": "broker-a",
    }  # fmt: skip


def queues(group: str, client_id: str, *named: tuple[str, int]) -> bytes:
    """Return the body of a request to lock queues."""
    found = [{"brokerName": "broker-a", "queueId": queue, "topic": topic} for topic, queue in named]
    return dumps({"clientId": client_id, "consumerGroup": group, "mqSet": found})


def locked(answer: RemotingCommand) -> list[tuple[str, int]]:
    """Return the queues in the answer to a request to lock queues."""
    return [(one["topic"], one["queueId"]) for one in loads(answer.body)["lockOKMQSet"]]


def records(body: bytes) -> list[Record]:
    """Return the records in the body of an answer."""
    starts, end = walk(body)
    assert end == len(body)
    return [decode_record(body, start) for start in starts.tolist()]
