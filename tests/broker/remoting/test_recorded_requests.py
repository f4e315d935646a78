"""Requests of RocketMQ's Java clients, replayed: answers have the codes and fields of Apache RocketMQ's.

Values that depend on the store differ: records of PocketMQ lack two properties of Apache RocketMQ's, so log offsets do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pocketmq.proto.message_id import decode_offset_message_id
from pocketmq.proto.remoting.codes import RequestCode
from pocketmq.proto.remoting.command import ONE_WAY, REQUEST_MAX, RemotingCommand, encode
from pocketmq.proto.remoting.fastjson import loads

from ...proto.remoting.recorded_frames import RecordedFrame, frames
from .classic import Classic, serving

PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
#: Codes of pulls depend on how fast messages come, and on what the recorded broker had stored before.
PULLED = {0, 19, 20, 21}
#: Bodies that do not depend on the store.
SAME_BODIES = (38, 41, 42, 34, 35)


def exchanges(recording: str) -> Iterator[tuple[RecordedFrame, RecordedFrame | None]]:
    """Yield the requests to the broker, in order, each with its answer (None: it has none)."""
    broker = [one for one in frames() if one.recording == recording and one.server == "broker"]
    requests: dict[int, list[RecordedFrame]] = {}
    answers: dict[int, list[RecordedFrame]] = {}
    for one in broker:
        if one.is_request and not one.flag & ONE_WAY:
            requests.setdefault(one.request_code, []).append(one)
        elif not one.is_request and one.flag & 1:
            answers.setdefault(one.request_code, []).append(one)
    for one in broker:
        if one.is_request and one.code == one.request_code:
            if one.flag & ONE_WAY:
                yield one, None
                continue
            at = requests[one.code].index(one)
            requests[one.code][at] = answers[one.code][min(at, len(answers[one.code]) - 1)]
            yield one, requests[one.code][at]


class Replay:
    """Sends recorded requests, with the log offsets that messages have here."""

    def __init__(self, client: Classic) -> None:
        self._client = client
        #: Log offsets by unique id.
        self._placed: dict[str, str] = {}

    async def ask(self, request: RecordedFrame, *, one_way: bool) -> RemotingCommand | None:
        fields = dict(request.fields or {})
        if request.code in PULLS:
            fields["suspendTimeoutMillis"] = "1"
        if request.code == RequestCode.END_TRANSACTION:
            fields["commitLogOffset"] = self._placed[fields["transactionId"]]
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            # It names a message of a batch, whose ids are not in the answer.
            fields["offset"] = next(iter(self._placed.values()))
        if one_way:
            self._client.begin(request.code, fields, request.body, flag=ONE_WAY)
            return None
        found: RemotingCommand = await self._client.ask(request.code, fields, request.body)
        if request.code == RequestCode.SEND_MESSAGE_V2:
            at = decode_offset_message_id(found.fields["msgId"])[2]
            self._placed[found.fields["transactionId"]] = str(at)
        return found


def check(request: RecordedFrame, found: RemotingCommand, answer: RecordedFrame) -> None:
    """Assert that FOUND is like the recorded ANSWER to REQUEST."""
    if request.code in PULLS:
        assert found.code in PULLED, (request, found)
    elif request.code == RequestCode.QUERY_CONSUMER_OFFSET:
        assert found.code in (0, 22), (request, found)
    else:
        assert found.code == answer.code, (request, found)
        assert found.fields.keys() == (answer.fields or {}).keys(), (request, found)
        if request.code in SAME_BODIES and answer.is_whole and found.body:
            assert loads(found.body) == loads(answer.body)


@pytest.mark.parametrize("recording", ["frames49", "frames55"])
async def test_answers_have_the_codes_and_fields_of_the_recording(
    tmp_path: Path, recording: str
) -> None:
    async with (
        serving(tmp_path, default_topic_queues=2) as broker,
        await Classic.connect(broker) as client,
    ):
        replay, asked = Replay(client), 0
        for request, answer in exchanges(recording):
            found = await replay.ask(request, one_way=answer is None)
            if answer is not None and found is not None:
                check(request, found, answer)
                asked += 1

        assert asked > 50


async def test_mutated_requests_do_not_disturb_others(tmp_path: Path) -> None:
    """Each mutated request is answered, or ends its own connection."""
    random = Random(7)
    recorded = [one for one in frames() if one.is_request and one.server == "broker"]
    async with (
        serving(tmp_path, fetch_wait_max_ms=0) as broker,
        await Classic.connect(broker, "steady@1") as steady,
    ):
        await steady.beat(producers=("steady",))
        for turn in range(300):
            frame = random.choice(recorded)
            command = RemotingCommand(
                code=frame.code,
                opaque=turn,
                fields=frame.fields or {},
                body=frame.body,
                is_json=random.random() < 0.5 or frame.code >= 1 << 15,
            )
            data = bytearray(encode(command))
            for _ in range(random.randint(1, 6)):
                at = random.randrange(4, len(data))
                data[at : at + random.randint(1, 4)] = random.randbytes(random.randint(1, 4))
            data[:4] = (len(data) - 4).to_bytes(4)
            host, port = broker.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(REQUEST_MAX), 10)
            assert not answer or len(answer) >= 8
            writer.close()
        assert (await steady.send("orders", b"after")).code == 0
        assert broker._running is not None
        assert len(broker._running.parts.classic.members) == 1
        assert broker.waiting == 0
