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
        """The receipts of the messages, in the order of `send`. Raises InvalidArgument before the commit."""
        return self._core.receipts

    @overload
    def send(self, message: Message, /) -> None: ...

    @overload
    def send(self, topic: str, value: Any, /, **parts: Unpack[MessageParts]) -> None: ...

    def send(
        self, message: Message | str, value: Any = NO_VALUE, /, **parts: Unpack[MessageParts]
    ) -> None:
        """Add a message to the commit: MESSAGE, or VALUE for a topic. It is sent when the block ends.

        Raises:
            InvalidArgument: The message has a delay, or the block has not started or has ended.
            MessageTooLarge: More than 10,000 messages, or more than 4 MiB, in this commit.

        Other errors are those that the producer's `send` raises before it sends.
        """
        return self._core.send(message, value, **parts)  # type: ignore[arg-type]
