"""`AtomicCommit`, generated from client/producing/atomic_commit.py by `make sync`. Edit that file."""

from __future__ import annotations

from typing import Any, Unpack, overload

from ...message import NO_VALUE, Message, MessageParts
from ...producing.atomic_commit import AsyncAtomicCommit
from ...producing.receipt import Receipt
from ..thread_block import ThreadBlock


class AtomicCommit(ThreadBlock[AsyncAtomicCommit]):
    """One atomic commit, for ordinary threads: `with producer.atomic_commit(consumer) as commit`."""

    @property
    def receipts(self) -> list[Receipt]:
        """Where each message lies, in the order of `send`. Raises InvalidArgument before the commit."""
        return self._core.receipts

    @overload
    def send(self, message: Message, /) -> None: ...

    @overload
    def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> None: ...

    def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> None:
        """Have MESSAGE, or VALUE for a topic, be sent with the commit. Raises what the producer's `send` does at once.

        Nothing leaves before the commit. Raises InvalidArgument for a message with a delay, MessageTooLarge for one
        message, or byte, more than a commit takes.
        """
        return self._core.send(message, value, **parts)  # type: ignore[arg-type]
