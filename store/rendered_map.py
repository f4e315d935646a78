"""A map in a JSON file of Apache RocketMQ as text, so that each writing of the file renders only what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")


class RenderedMap(Generic[V]):
    """The texts of the members of a map, in order. RENDER makes the text of a name and its entry.

    One thread at a time owns it: the one that writes the file.
    """

    def __init__(self, render: Callable[[str, V], str]) -> None:
        self._render = render
        #: The texts by name, for `pieces_with_members`.
        self.texts: dict[str, str] = {}

    def change(self, gone: Iterable[str], entries: Mapping[str, V | None]) -> bool:
        """Remove GONE, then render ENTRIES (None: skip it); return whether there are other names now.

        A name that is removed and has an entry becomes the last one.
        """
        before = len(self.texts)
        for name in gone:
            self.texts.pop(name, None)
        left = len(self.texts)
        for name, entry in entries.items():
            if entry is not None:
                self.texts[name] = self._render(name, entry)
        return not before == left == len(self.texts)
