"""All targets by name."""

from __future__ import annotations

from typing import Final

from . import store_targets, wire_targets

BY_NAME: Final = {one.name: one for one in (*store_targets.TARGETS, *wire_targets.TARGETS)}
