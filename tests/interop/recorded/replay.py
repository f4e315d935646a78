"""Recorded calls made again, in their order and at their times.

    what a call waited for       moved past on a virtual clock
    a call that takes longer     than it did: all that follows is later by as much
    receipt and recall handles   in a request: ours, where the recorded one came from an answer
    delivery times               in a request: later by what we are late
    clients with a stream        beat, as real ones do and the recorder did not

Everything of a run is called on one broker, because later cases read what earlier ones sent.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final

from google.protobuf import json_format

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2

from .calls import Answer, Conversation, Reach, call
from .documents import Case, began_ms, instant, instant_ms, long_body

_STEP_MS: Final = 50
#: So much longer than in the recording an answer may take, where it is waited for.
PATIENCE_MS: Final = 30_000
#: A call that follows another may seem to begin so much before the other's end.
_ROUNDING_MS: Final = 2
_BEAT_MS: Final = 30_000
_HANDLES: Final = ("receipt_handle", "recall_handle")
Step = Callable[[], Coroutine[Any, Any, None]]


class Replay:
    """The answers of REACH's methods to recorded cases, as CLOCK is moved.

    An answer is waited for PATIENCE_MS longer than in the recording.
    """

    def __init__(self, clock: VirtualClock, reach: Reach, patience_ms: int = PATIENCE_MS) -> None:
        self._patience_ms = patience_ms
        self._clock = clock
        self._reach = reach
        #: By case id.
        self.answers: dict[str, Answer] = {}
        self._steps: list[tuple[int, int, Step]] = []
        self._order = count()
        #: Unary calls and server streams that are under way: when the recorded one ended, and its case.
        self._open: list[tuple[int, Case]] = []
        self._late_ms = 0
        #: Recorded handles of messages that were answered here too.
        self._handles: dict[str, str] = {}
        #: Queue and offset of messages that were received here, by their ids.
        self._places: dict[str, tuple[int, int]] = {}

    async def run(self, cases: list[Case]) -> None:
        """Call all CASES."""
        for case in cases:
            begin = self._converse if "events" in case else self._ask
            self._at(began_ms(case), partial(begin, case))
        while self._steps:
            recorded_ms, _, step = heapq.heappop(self._steps)
            await self._reach_time(recorded_ms)
            await step()
        await self._reach_time(max(began_ms(case) + case["duration_ms"] for case in cases))

    def _at(self, recorded_ms: int, step: Step) -> None:
        heapq.heappush(self._steps, (recorded_ms, next(self._order), step))

    # --- time

    async def _reach_time(self, recorded_ms: int) -> None:
        """Move to RECORDED_MS, and on until every call is answered that had been by then."""
        await self._advance_to(recorded_ms + self._late_ms)
        last_ms = recorded_ms + _ROUNDING_MS
        awaited = [case for ended_ms, case in self._open if ended_ms <= last_ms]
        self._open = [(ended_ms, case) for ended_ms, case in self._open if ended_ms > last_ms]
        for case in awaited:
            waited_ms = 0
            while self.answers[case["id"]].ended_ms is None and waited_ms < self._patience_ms:
                await self._clock.advance(_STEP_MS)
                waited_ms += _STEP_MS
            self._learn(case)
        self._late_ms = max(self._late_ms, self._clock.now_ms() - recorded_ms)

    async def _advance_to(self, now_ms: int) -> None:
        await self._clock.advance(max(0, now_ms - self._clock.now_ms()))

    # --- calls

    async def _ask(self, case: Case) -> None:
        answer = self.answers[case["id"]] = Answer(self._clock, case["deadline_s"])
        method = self._reach.find(case["path"])
        if method is None:
            answer.end("UNIMPLEMENTED")
            return
        request = self._translated(case["request"])
        data = json_format.ParseDict(request, method.request_type()).SerializeToString()
        if not data and case["request_wire"]:
            data = base64.b64decode(case["request_wire"])  # No message: bytes that are not one.
        self._open.append((began_ms(case) + case["duration_ms"], case))
        await call(method, data, answer, case["metadata"])

    async def _converse(self, case: Case) -> None:
        answer = self.answers[case["id"]] = Answer(self._clock, case.get("deadline_s"))
        method = self._reach.find(case["path"])
        assert method is not None, "Telemetry is served"
        talk = Conversation(method, answer, case["metadata"])
        for event in case["events"]:
            if event["from"] == "client":
                said = json_format.ParseDict(self._translated(event["body"]), v2.TelemetryCommand())
                self._at(began_ms(case) + event["at_ms"], _soon(talk.say, said))
            elif "verify_message_command" in event["body"]:
                tried = event["body"]["verify_message_command"]["message"]
                self._at(began_ms(case) + event["at_ms"], partial(self._try, case, tried))
        end_ms = began_ms(case) + case["duration_ms"]
        for beat_ms in range(began_ms(case) + _BEAT_MS, end_ms, _BEAT_MS):
            self._at(beat_ms, partial(self._beat, case))
        if case.get("grpc_status") in ("DEADLINE_EXCEEDED", "CANCELLED"):
            self._at(end_ms, _soon(talk.break_off, case["grpc_status"]))
        else:
            self._at(end_ms, _soon(talk.half_close))

    async def _beat(self, case: Case) -> None:
        method = self._reach.find("/apache.rocketmq.v2.MessagingService/Heartbeat")
        assert method is not None, "Heartbeat is served"
        subscription = case["events"][0]["body"]["settings"].get("subscription", {})
        request = json_format.ParseDict(
            {name: value for name, value in subscription.items() if name == "group"},
            v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER if subscription else v2.PRODUCER),
        )
        answer = Answer(self._clock, None)
        await call(method, request.SerializeToString(), answer, case["metadata"])

    async def _try(self, case: Case, message: dict[str, Any]) -> None:
        """Have the client of CASE be asked, as an administrator does, what it makes of MESSAGE."""
        method = self._reach.find("/pocketmq.v1.Broker/AskClient")
        assert method is not None, "AskClient is served"
        queue, offset = self._places[message["system_properties"]["message_id"]]
        place = pb.TryMessage(topic=message["topic"]["name"], queue=queue, offset=offset)
        asked = pb.AskClientRequest(client_id=case["metadata"]["x-mq-client-id"], try_message=place)
        answer = Answer(self._clock, None)
        await call(method, asked.SerializeToString(), answer, case["metadata"])

    def _translated(self, node: Any) -> Any:
        """Return a recorded request as it is sent here and now."""
        if isinstance(node, list):
            return [self._translated(value) for value in node]
        if not isinstance(node, dict):
            return node
        return {name: self._translated_field(name, value) for name, value in node.items()}

    def _translated_field(self, name: str, value: Any) -> Any:
        if name in _HANDLES:
            return self._handles.get(value, value)
        if name == "body" and isinstance(value, str):
            return long_body(value)
        if name == "delivery_timestamp" and not value.startswith("1970"):
            return instant(instant_ms(value) + self._late_ms)
        return self._translated(value)

    # --- handles

    def knows(self, handle: str) -> bool:
        """Is there one of ours for the recorded HANDLE?"""
        return handle in self._handles

    def _learn(self, case: Case) -> None:
        """Note which of our handles are those of CASE."""
        ours = [_body(message) for _, message in self.answers[case["id"]].items]
        theirs = [response["body"] for response in case["responses"]]
        self._learn_pairs(theirs, ours)
        self._places |= _places(ours)
        deliveries = _deliveries(ours)
        for message_id, handles in _deliveries(theirs).items():
            self._handles.update(zip(handles, deliveries.get(message_id, ()), strict=False))

    def _learn_pairs(self, theirs: list[Any], ours: list[Any]) -> None:
        for their, our in zip(theirs, ours, strict=False):
            if "receipt_handle" in their and our.get("receipt_handle"):
                self._handles[their["receipt_handle"]] = our["receipt_handle"]
            entries = zip(their.get("entries", ()), our.get("entries", ()), strict=False)
            for their_entry, our_entry in entries:
                if "recall_handle" in their_entry and "recall_handle" in our_entry:
                    self._handles[their_entry["recall_handle"]] = our_entry["recall_handle"]


def _soon(function: Callable[..., None], *arguments: Any) -> Step:
    async def step() -> None:
        function(*arguments)
        await asyncio.sleep(0)

    return step


def _body(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _deliveries(bodies: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the receipt handles in BODIES by message id."""
    found: dict[str, list[str]] = {}
    for body in bodies:
        system = body.get("message", {}).get("system_properties", {})
        if "receipt_handle" in system:
            found.setdefault(system["message_id"], []).append(system["receipt_handle"])
    return found


def _places(bodies: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    found = {}
    for body in bodies:
        system = body.get("message", {}).get("system_properties", {})
        if "queue_offset" in system:
            place = system.get("queue_id", 0), int(system["queue_offset"])
            found[system["message_id"]] = place
    return found
