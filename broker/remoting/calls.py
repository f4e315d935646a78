"""A remoting request as the call of another part of the broker, whose reply becomes the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.errors_wire import ours
from ...proto.remoting.requests import RemotingRequest
from ...proto.rpc import Call, CallContext, CallUser, RpcError

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class _CallUser(CallUser):
    """The user of REQUEST."""

    __slots__ = ("_user", "name")

    def __init__(self, request: RemotingRequest) -> None:
        self._user = request.user
        self.name = request.user.name

    def may(self, call: CallContext, need: Any) -> bool:
        return self._user.may(need)


class RemotingCall(Call):
    """REQUEST as a call. ANSWER sends the answer for a reply."""

    __slots__ = ("_answer", "_request")

    def __init__(self, request: RemotingRequest, answer: Callable[[Any], None]) -> None:
        super().__init__()
        self.user = _CallUser(request)
        self._request = request
        self._answer = answer

    @property
    def peer(self) -> str:
        return self._request.connection.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return _NOTHING

    @property
    def deadline_ms(self) -> int | None:
        return None

    def add_trailing(self, name: str, value: str) -> None:
        pass

    def reply(self, message: Message) -> None:
        self._answer(message)

    def fail(self, error: RpcError) -> None:
        self._request.fail(error if isinstance(error, PocketMQError) else ours(error))
