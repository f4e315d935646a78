"""Listeners of push consumers that note what they get."""

from __future__ import annotations

import asyncio
from typing import Any

from .push_world import number


class Seen:
    """A coroutine listener that notes what it gets, and waits where it is told to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.messages: list[Any] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.at_once = self.most_at_once = 0

    def gate(self, *numbers: int) -> asyncio.Event:
        """Have the listener wait at NUMBERS until the event is set."""
        event = asyncio.Event()
        self.gates |= dict.fromkeys(numbers, event)
        return event

    async def __call__(self, message: Any) -> None:
        self.numbers.append(number(message))
        self.messages.append(message)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if event := self.gates.get(number(message)):
                await event.wait()
        finally:
            self.at_once -= 1
