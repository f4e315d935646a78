"""The short text that a consumer commits with an offset, Kafka's commit metadata: what may be one."""

from __future__ import annotations

from typing import Final

from .errors import InvalidArgument

#: Bytes of UTF-8.
COMMIT_METADATA_MAX: Final = 1_024


def check_metadata(text: str) -> str:
    """Return TEXT; raise InvalidArgument for one that is too long, or no text."""
    if not isinstance(text, str):
        raise InvalidArgument(
            f"metadata of a commit is {type(text).__name__}, must be str", field="metadata"
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"metadata of a commit cannot be sent: character {error.start + 1} is none of Unicode's (a stray byte)",
            field="metadata",
        ) from error
    if size > COMMIT_METADATA_MAX:
        raise InvalidArgument(
            f"metadata of a commit has {size} bytes of UTF-8, may have {COMMIT_METADATA_MAX}: keep it elsewhere,"
            " and commit what finds it",
            field="metadata",
            limit=COMMIT_METADATA_MAX,
            value=size,
        )
    return text
