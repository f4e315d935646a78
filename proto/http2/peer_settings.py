"""What a peer's SETTINGS may say (RFC 9113 §6.5.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .faults import ConnectionFault
from .frames import (
    DEFAULT_FRAME_SIZE,
    ENABLE_PUSH,
    FRAME_SIZE_MAX,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    SETTING,
    WINDOW_MAX,
    ErrorCode,
)

#: By identifier: the least and the greatest value, and what another one is called.
_BOUNDS: Final = {
    ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    INITIAL_WINDOW_SIZE: (0, WINDOW_MAX, ErrorCode.FLOW_CONTROL_ERROR),
    MAX_FRAME_SIZE: (DEFAULT_FRAME_SIZE, FRAME_SIZE_MAX, ErrorCode.PROTOCOL_ERROR),
}


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield identifiers and values in their order; raise ConnectionFault for a value out of its bounds."""
    if len(payload) % SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are six bytes each")
    for identifier, value in SETTING.iter_unpack(payload):
        least, most, code = _BOUNDS.get(identifier, (0, value, ErrorCode.NO_ERROR))
        if not least <= value <= most:
            raise ConnectionFault(
                code, f"setting {identifier} is {value}, not between {least} and {most}"
            )
        yield identifier, value
