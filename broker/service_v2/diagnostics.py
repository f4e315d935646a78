"""Diagnostic commands of administrators to one official client, over its Telemetry stream.

    thread stacks   supported by clients in Java, Go, C++; those in Node.js answer other text
    try a message   a push consumer gives it to its listener and reports the result: Java and C++
    reconnect       open the connections again: Java, Go and Node.js, without an answer

Answers are matched by a number and by their client. If a client does not answer in time, the call ends with
RequestTimeout.

Limits: `_WAITING_MAX` commands wait at once, each for up to `_TIMEOUT_MAX_MS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Final

from ...proto.access.listing import SeenNames
from ...proto.access.policies import SUB, of_topic
from ...proto.clock import ahead_ms
from ...proto.errors import (
    InvalidArgument,
    MessageNotFound,
    NotAuthorized,
    Overloaded,
    RequestTimeout,
)
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, MethodTable, service as service_of, unary
from ...store.message_store import MessageStore
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import Topics
from .client_session import ClientSession, CommandStream
from .messages import delivered
from .sessions import Sessions

_WAITING_MAX: Final = 1_000
_TIMEOUT_MS: Final = 3_000
_TIMEOUT_MAX_MS: Final = 60_000
_TOPICS_SHOWN: Final = 100


@dataclass(slots=True, eq=False)
class _PendingQuery:
    client_id: str
    call: Call
    timer: Timer


class Diagnostics:
    """Sends commands to the clients of SESSIONS. TIMERS use the machine's time."""

    def __init__(
        self, sessions: Sessions, topics: Topics, store: MessageStore, timers: Timers
    ) -> None:
        self._sessions = sessions
        self._topics = topics
        self._store = store
        self._timers = timers
        self._numbers = count(1)
        #: Waiting commands by nonce.
        self._waiting: dict[str, _PendingQuery] = {}

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service_of(
            "pocketmq.v1.Broker",
            {
                "ListClients": unary(pb.ClientListRequest, pb.ClientListReply, self.list),
                "AskClient": unary(pb.AskClientRequest, pb.AskClientReply, self.ask),
            },
        )

    def list(self, request: pb.ClientListRequest, call: Call) -> pb.ClientListReply:
        """Answer the connected clients, without topics and groups that the user may not see."""
        seen = SeenNames(call)
        sessions = sorted(self._sessions, key=lambda session: session.client_id)
        ahead = ahead_ms(self._timers)
        return pb.ClientListReply(
            clients=[_described(session, ahead, seen) for session in sessions]
        )

    def ask(self, request: pb.AskClientRequest, call: Call) -> pb.AskClientReply | Later:
        """Send a command to a client; its answer becomes the reply."""
        what = request.WhichOneof("what")
        if what is None:
            raise InvalidArgument(
                "what is not set: use thread_stacks, try_message or reconnect", field="what"
            )
        stream = self._stream(request.client_id)
        place = request.try_message
        if what == "try_message" and not stream.may(of_topic(place.topic, SUB)):
            raise NotAuthorized(
                f"client {request.client_id[:255]!r}: its user may not read topic {place.topic[:255]!r}, so it cannot"
                " get a message of it",
                resource=f"Topic:{place.topic[:255]}",
            )
        nonce = str(next(self._numbers))
        command = self._command(request, nonce)
        if what == "reconnect":
            stream.send(command)
            return pb.AskClientReply(code=v2.OK)
        self._wait(request, call, nonce)
        stream.send(command)
        return LATER

    def _stream(self, client_id: str) -> CommandStream:
        session = self._sessions.find(client_id)
        stream = session.stream if session is not None else None
        if stream is None or not stream.has_room:
            raise InvalidArgument(
                f"client {client_id[:255]!r} has no open stream here, or does not read it: commands cannot be sent",
                field="client_id",
                value=client_id[:255],
            )
        return stream

    def _command(self, request: pb.AskClientRequest, nonce: str) -> v2.TelemetryCommand:
        if request.HasField("reconnect"):
            return v2.TelemetryCommand(
                reconnect_endpoints_command=v2.ReconnectEndpointsCommand(nonce=nonce)
            )
        if request.HasField("thread_stacks"):
            return v2.TelemetryCommand(
                print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce)
            )
        message = self._message(request.try_message)
        return v2.TelemetryCommand(
            verify_message_command=v2.VerifyMessageCommand(nonce=nonce, message=message)
        )

    def _message(self, place: pb.TryMessage) -> v2.Message:
        self._topics.for_reading(place.topic, place.queue)
        low, high = self._store.queue_bounds(place.topic, place.queue)
        if not low <= place.offset < high:
            raise MessageNotFound(
                f"no message at offset {place.offset} of {place.topic}/{place.queue}: it has {low} to {high - 1}",
                field="offset",
                value=place.offset,
            )
        found = self._store.read_queue(place.topic, place.queue, place.offset, 1, 1).records
        return delivered(found, v2.Resource(name=place.topic), attempt=1)

    def _wait(self, request: pb.AskClientRequest, call: Call, nonce: str) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            raise Overloaded(
                f"{len(self._waiting)} commands to clients wait, the limit is {_WAITING_MAX}: try again later",
                field="questions",
                limit=_WAITING_MAX,
                value=len(self._waiting),
            )
        timeout_ms = min(request.timeout_ms or _TIMEOUT_MS, _TIMEOUT_MAX_MS)
        timer = self._timers.after(timeout_ms, lambda: self._give_up(nonce, timeout_ms))
        self._waiting[nonce] = _PendingQuery(request.client_id, call, timer)
        call.on_cancel(lambda: self._drop(nonce))

    def _drop(self, nonce: str) -> None:
        self._forget(nonce)

    def _forget(self, nonce: str) -> _PendingQuery | None:
        question = self._waiting.pop(nonce, None)
        if question is not None:
            self._timers.cancel(question.timer)
        return question

    def _give_up(self, nonce: str, timeout_ms: int) -> None:
        question = self._forget(nonce)
        if question is not None:
            question.call.fail(
                RequestTimeout(
                    f"client {question.client_id!r} did not answer in {timeout_ms} ms: its language may not support the"
                    " command",
                    client_id=question.client_id,
                )
            )

    def take(self, client_id: str, command: v2.TelemetryCommand) -> None:
        """Complete the command that CLIENT_ID answers; an unexpected answer is ignored."""
        stacks, result = command.thread_stack_trace, command.verify_message_result
        nonce = stacks.nonce or result.nonce
        question = self._waiting.get(nonce)
        if question is None or question.client_id != client_id:
            return
        self._forget(nonce)
        question.call.reply(
            pb.AskClientReply(
                code=command.status.code or v2.OK,
                message=command.status.message,
                text=stacks.thread_stack_trace,
            )
        )


def _described(session: ClientSession, ahead: int, seen: SeenNames) -> pb.OfficialClient:
    client = pb.OfficialClient(
        client_id=session.client_id,
        language=session.language,
        streams=len(session.streams),
        heard_ms=session.heard_ms + ahead,
    )
    settings = session.settings
    if settings is None:
        return client
    agent = settings.user_agent
    if agent.language and agent.language in v2.Language.values():
        client.language = v2.Language.Name(agent.language)
    client.version = agent.version
    if settings.client_type in v2.ClientType.values():
        client.type = v2.ClientType.Name(settings.client_type)
    topics = [topic.name for topic in settings.publishing.topics] or [
        entry.topic.name for entry in settings.subscription.subscriptions
    ]
    group = settings.subscription.group.name
    client.hidden_group = bool(group) and not seen.has_group(group)
    client.group = "" if client.hidden_group else group
    shown = [topic for topic in topics if seen.has_topic(topic)]
    client.hidden_topics = len(topics) - len(shown)
    client.topics.extend(shown[:_TOPICS_SHOWN])
    return client
