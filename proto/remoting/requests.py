"""One received request: its fields, and its answer, which is sent once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..access.policies import Need
from ..errors import InvalidArgument, PocketMQError
from .answers import code_of
from .codes import SUCCESS
from .command import RemotingCommand
from .connection import RemotingConnection
from .fastjson import loads

_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
#: The size of a body in JSON, and of one that only the slower reader of fastjson's dialect can read.
_JSON_MAX: Final = 1 << 20
_DIALECT_MAX: Final = 1 << 16
#: Longer values are shortened in remarks.
_SHOWN: Final = 64
#: A longer remark is cut off.
_REMARK_MAX: Final = 1_024


def _parsed(body: bytes) -> Any:
    """Return the value in BODY; raise ValueError. Nearly all clients send standard JSON, which is faster to read."""
    try:
        found = json.loads(body)
        if not body.isascii() or b"\\u" in body:
            # Half of a surrogate pair, which no other part can encode, becomes a question mark.
            written = json.dumps(found, ensure_ascii=False)
            found = json.loads(written.encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        if len(body) > _DIALECT_MAX:
            raise
    else:
        return found
    return loads(body)


class RequestUser:
    """The user of requests, as a guard identified it. This class itself is for servers without users."""

    __slots__ = ()
    #: "": the server has no users.
    name: str = ""

    def may(self, need: Need) -> bool:
        """May the user do at present what NEED describes?"""
        return True


ANYBODY: Final = RequestUser()


class RemotingRequest:
    """COMMAND from CONNECTION. DONE is called when it was answered."""

    __slots__ = ("_done", "_object", "command", "connection", "user")

    def __init__(
        self, connection: RemotingConnection, command: RemotingCommand, done: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.command = command
        #: The user; set by the guard before the handler.
        self.user: RequestUser = ANYBODY
        self._done: Callable[[], None] | None = done
        self._object: dict[str, Any] | None = None

    @property
    def is_answered(self) -> bool:
        """Was it answered?"""
        return self._done is None

    def answer(
        self,
        body: bytes = b"",
        *,
        code: int = SUCCESS,
        remark: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """Send the answer, unless the request wants none. Further answers are ignored."""
        done, self._done = self._done, None
        if done is None:
            return
        self.connection.waiting.pop(self, None)
        done()
        if self.command.wants_answer:
            answer = self.command.answer(
                body, code=code, remark=remark[:_REMARK_MAX], fields=fields
            )
            self.connection.send(answer)

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Call FUNCTION if the connection is closed before this is answered."""
        if self._done is not None:
            self.connection.waiting[self] = function

    def cancel(self) -> None:
        """Cancel what waits to answer this."""
        cancel = self.connection.waiting.pop(self, None)
        if cancel is not None:
            cancel()

    def fail(self, error: PocketMQError) -> None:
        """Answer with ERROR."""
        self.answer(code=code_of(error), remark=error.message)

    def end(self, error: PocketMQError | None) -> None:
        """Answer with ERROR; None: it succeeded."""
        if error is None:
            self.answer()
        else:
            self.fail(error)

    def text(self, name: str, default: str | None = None) -> str:
        """Return the field NAME; raise InvalidArgument if it is missing and there is no DEFAULT."""
        found = self.command.fields.get(name, default)
        if found is None:
            raise InvalidArgument(f"the field {name} is missing", field=name)
        return found

    def number(
        self, name: str, default: int | None = None, *, most: int = _INT_MAX, least: int = 0
    ) -> int:
        """Return the number in the field NAME, LEAST to MOST; DEFAULT if it is missing. Raises InvalidArgument."""
        said = self.command.fields.get(name)
        if said is None and default is not None:
            return default
        said = self.text(name)
        digits = said.removeprefix("-")
        value = int(said) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
        if value is None or not least <= value <= most:
            raise InvalidArgument(
                f"the field {name} is {said[:_SHOWN]!r}: must be a number, {least} to {most}",
                field=name,
                value=said[:_SHOWN],
            )
        return value

    def long(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return the number of up to 64 bits in the field NAME; as `number`."""
        return self.number(name, default, most=_LONG_MAX, least=least)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return whether the field NAME is "true"."""
        said = self.command.fields.get(name)
        return default if said is None else said.lower() == "true"

    def json(self) -> dict[str, Any]:
        """Return the object in the body, always the same one; raise InvalidArgument."""
        if self._object is None:
            self._object = self._read_object()
        return self._object

    def _read_object(self) -> dict[str, Any]:
        body = self.command.body
        if len(body) > _JSON_MAX:
            raise InvalidArgument(
                f"the body has {len(body):,} bytes, the limit is {_JSON_MAX:,}",
                field="body",
                limit=_JSON_MAX,
                value=len(body),
            )
        try:
            found = _parsed(body)
        except ValueError as error:
            raise InvalidArgument(f"the body is not JSON: {error}", field="body") from None
        if not isinstance(found, dict):
            raise InvalidArgument("the body is not a JSON object", field="body")
        return found
