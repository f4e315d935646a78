"""Pieces of the log that replicas send each other to replace damage."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..proto.errors import CorruptRecord
from ..proto.record_run import RunColumns, crc_mismatches, parse_run, walk
from .commit_log import CommitLog
from .format.log import BLANK_SIZE, is_blank

#: The maximum size of a piece of several records; a single record may be larger.
PIECE_BYTES: Final = 1_048_576


class Piece(NamedTuple):
    """Complete valid records from an offset of the log on, or the blank that closes the file there."""

    data: bytes
    columns: RunColumns


def whole_piece(log: CommitLog, offset: int, size_max: int) -> Piece | None:
    """Return the part of LOG from OFFSET on, where a record or a blank begins: up to SIZE_MAX bytes, or one record.

    None: LOG does not have it. Raises CorruptRecord if it is damaged here, too.
    """
    file = log.files.file_at(offset)
    if file is None or offset >= log.max_offset:
        return None
    at = offset - file.start
    size = log.record_size(offset)
    view = file.view[: file.position]
    if size is None:
        data = bytes(view[at : at + BLANK_SIZE])
    else:
        _, end = walk(view, at, min(file.position, at + max(size_max, size)))
        data = bytes(view[at:end])
    return checked_piece(data, offset, file.size - at)


def checked_piece(data: bytes, offset: int, left: int) -> Piece:
    """Return the records of DATA for OFFSET of a log, where LEFT bytes are left of the file.

    Only records before the first damaged one are returned. Raises CorruptRecord if the first one is damaged.
    """
    starts, end = walk(data)
    columns = parse_run(data, starts)
    if not len(columns) and len(data) == BLANK_SIZE and is_blank(data, 0, left):
        return Piece(data, columns)
    good = columns.well_formed & (columns.log_offset == starts + offset)
    if len(columns):
        good[good] &= ~crc_mismatches(data, columns.take(good))
    count = len(good) if good.all() else int(good.argmin())
    end = end if count == len(good) else int(starts[count])
    if not count or end > left:
        raise CorruptRecord(f"the log is damaged at {offset:,}", offset=offset)
    return Piece(data[:end], columns.take(slice(0, count)))
