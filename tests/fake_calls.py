"""Calls and streams without a wire: what a handler says is kept, as a carrier would have sent it.

They hold a handler to its duties of `proto/rpc.py`: it answers once, and says nothing after the end of a stream. What
it says to a caller that has gone is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from pocketmq.proto.access.policies import Need
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import ours
from pocketmq.proto.rpc import Call, CallContext, CallUser, RpcError, Stream

PEER = "127.0.0.1:1"
Sent = TypeVar("Sent", bound=Message)


class FakeUser(CallUser):
    """User NAME, who may do anything but what is DENIED."""

    def __init__(self, name: str, *denied: Need) -> None:
        self.name = name
        self.denied = set(denied)

    def may(self, call: CallContext, need: Need) -> bool:
        return need not in self.denied


class FakeContext(CallContext):
    """The caller at PEER, who sends METADATA as USER, and waits for DEADLINE_MS or without end."""

    def __init__(
        self,
        peer: str = PEER,
        *,
        metadata: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        user: CallUser | None = None,
    ) -> None:
        super().__init__()
        if user is not None:
            self.user = user
        self._peer = peer
        self._metadata = metadata or {}
        self._deadline_ms = deadline_ms
        #: What the handler said, in its order.
        self.sent: list[Any] = []
        #: What follows the answer.
        self.trailing: dict[str, str] = {}

    def add_trailing(self, name: str, value: str) -> None:
        assert name not in self.trailing, f"said twice: {name}"
        self.trailing[name] = value

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._metadata

    @property
    def deadline_ms(self) -> int | None:
        return self._deadline_ms


class FakeCall(FakeContext, Call):
    """A unary call, and its answer."""

    @property
    def answers(self) -> list[Any]:
        """What it was answered, errors too: at most one."""
        return self.sent

    @property
    def answer(self) -> Any:
        """The reply or the error; None: it was not answered."""
        return self.answers[0] if self.answers else None

    @property
    def error(self) -> PocketMQError | None:
        """The error that it was answered with."""
        return self.answer if isinstance(self.answer, PocketMQError) else None

    def reply(self, message: Message) -> None:
        self._settle(copied(message))

    def fail(self, error: RpcError) -> None:
        self._settle(ours(error))

    def _settle(self, answer: Message | PocketMQError) -> None:
        if not self.cancelled:
            self.answers.append(answer)
            assert len(self.answers) == 1, f"a call is answered once: {self.answers}"


class FakeStream(FakeContext, Stream):
    """The outgoing half of a stream: what was sent, and how it ended."""

    #: What is said to wait for the peer.
    waiting_bytes: int = 0
    is_over: bool = False
    #: What it failed with.
    error: PocketMQError | None = None

    @property
    def queued_bytes(self) -> int:
        return self.waiting_bytes

    def send(self, message: Message) -> None:
        if not self.cancelled:
            assert not self.is_over, f"sent after the end: {message}"
            self.sent.append(copied(message))

    def finish(self) -> None:
        self._end(None)

    def fail(self, error: RpcError) -> None:
        self._end(ours(error))

    def _end(self, error: PocketMQError | None) -> None:
        if not self.cancelled:
            assert not self.is_over, f"a stream ends once: {self.error}, then {error}"
            self.is_over, self.error = True, error

    async def drained(self) -> None:
        """Return: nothing is queued."""


def copied(message: Sent) -> Sent:
    """Return MESSAGE as it is now: a carrier encodes at once, and the sender may reuse it."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
