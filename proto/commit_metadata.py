"""The short text that a consumer commits with an offset (offset metadata), and its limits."""

from __future__ import annotations

from typing import Final

from .errors import InvalidArgument

#: Bytes of UTF-8.
COMMIT_METADATA_MAX: Final = 1_024


def check_metadata(text: str) -> str:
    """Return TEXT; raise InvalidArgument if it is too long, or not valid text."""
    if not isinstance(text, str):
        raise InvalidArgument(
            f"metadata of a commit is {type(text).__name__}, must be str", field="metadata"
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"metadata of a commit cannot be sent: character {error.start + 1} is not valid Unicode (a stray byte)",
            field="metadata",
        ) from error
    if size > COMMIT_METADATA_MAX:
        raise InvalidArgument(
            f"metadata of a commit has {size} bytes of UTF-8, the limit is {COMMIT_METADATA_MAX}: store it elsewhere,"
            " and commit a key to it",
            field="metadata",
            limit=COMMIT_METADATA_MAX,
            value=size,
        )
    return text
