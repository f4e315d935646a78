"""How a task opens the store that it works on: as a broker would, without a byte written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...proto.clock import SystemClock
from ...store.open_files import allow_many_files
from ...store.view import OpenedStore
from ..stores import RecoveryName
from ..stores.cold_store import open_cold
from ..stores.locations import StoreLocation


def _now_ms() -> int:
    return SystemClock().unix_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How stores are opened in tasks: as a broker would at NOW_MS, with SETTINGS by Apache's names."""

    now_ms: int = field(default_factory=_now_ms)
    settings: Mapping[str, str] = field(default_factory=dict)
    recovery: RecoveryName = "apache"

    def open(self, location: StoreLocation) -> OpenedStore:
        """Return the store at LOCATION, without its key index. Raises StoreRefused."""
        allow_many_files()
        return open_cold(
            location,
            now_ms=self.now_ms,
            given=self.settings,
            recovery=self.recovery,
            index=False,
        )
