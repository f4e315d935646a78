"""Files read at single places: mapped or page by page, the bytes are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pocketmq.store import listing
from pocketmq.store.disk import Buffer
from pocketmq.store.listing import FilePages, PagedRow
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.find.files import LogFiles

from ...recorded import expected, recorded_store
from ...runs import Hand, make_run, open_store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("row") / "file"
    path.write_bytes(bytes(range(251)) * 1000)
    return path


@given(st.integers(0, 260_000), st.integers(0, 200_000), st.booleans())
def test_any_range_is_that_of_the_file_and_zeros(
    file: Path, at: int, size: int, mapped: bool
) -> None:
    whole = file.read_bytes()

    found = FilePages(OsDisk(), str(file), len(whole), mapped=mapped).read(at, size)

    assert bytes(found) == whole[at : at + size].ljust(size, b"\0")


def test_pieces_of_a_remote_file_overlap(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_PIECE_BYTES", 1000)
    whole = file.read_bytes()
    pages = FilePages(OsDisk(), str(file), len(whole), mapped=False)

    pieces = list(pages.pieces(500, 5000, 10))

    assert [at for at, _ in pieces] == [500, 1490, 2480, 3470, 4460]
    assert all(bytes(piece) == whole[at : min(at + 1000, 5000)] for at, piece in pieces)


def test_a_file_that_vanished_reads_as_zeros(tmp_path: Path) -> None:
    for mapped in (True, False):
        pages = FilePages(OsDisk(), str(tmp_path / "gone"), 100, mapped=mapped)
        assert bytes(pages.read(0, 10)) == bytes(10)
        # More than fits into the pages that are kept.
        assert bytes(pages.read(0, 5 << 20)) == bytes(5 << 20)
        assert b"".join(bytes(piece) for _, piece in pages.pieces(0, 100, 3)) == b""


def test_a_row_leaves_out_what_is_no_part_of_it(tmp_path: Path) -> None:
    for name, size in (
        ("00000000000000000000", 8),
        ("00000000000000000016", 8),
        ("note", 8),
        ("9", 0),
    ):
        (tmp_path / name).write_bytes(bytes(size))

    row = PagedRow(OsDisk(), str(tmp_path), mapped=True)

    assert [(file.start, file.end) for file in row.files] == [(0, 8), (16, 24)]
    assert [row.file_at(at) is not None for at in (-1, 0, 7, 8, 16, 23, 24)] == [
        False, True, True, False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("mapped", [True, False])
def test_a_word_in_the_log_leads_to_the_records_that_hold_it(mapped: bool, tmp_path: Path) -> None:
    store = recorded_store("damaged-flip-middle-clean", tmp_path / "store")
    log = LogFiles(OsDisk(), str(store / "commitlog"), mapped=mapped)
    records = expected("damaged-flip-middle-clean")["records"]

    found = [one.log_offset for one in log.holding(b"order-4", 100_000, 900_000)]

    wanted = [
        one["physicalOffset"]
        for one in records
        if "order-4" in one["properties"].get("KEYS", "")
        and 100_000 <= one["physicalOffset"] < 900_000
    ]
    assert set(wanted) <= set(found)
    assert found == sorted(set(found))
    assert set(found) <= {one["physicalOffset"] for one in records}


@pytest.mark.parametrize("mapped", [True, False])
def test_holes_of_files_that_age_closed_are_not_searched(
    mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, size = Hand(), 64 << 20
    store = open_store(tmp_path, now_ms=clock, log_file_size_bytes=size, log_roll_ms=300_000)
    offsets = []
    for _ in range(4):
        offsets += store.append(make_run("T", 0, [b"needle"])).log_offsets.tolist()
        clock.now_ms += 300_000
        store.tick()
    store.close()
    searched: list[int] = []
    pieces = FilePages.pieces

    def counted(
        pages: FilePages, begin: int, end: int, overlap_bytes: int
    ) -> Iterator[tuple[int, Buffer]]:
        searched.append(end - begin)
        return pieces(pages, begin, end, overlap_bytes)

    monkeypatch.setattr(FilePages, "pieces", counted)
    log = LogFiles(OsDisk(), str(tmp_path / "commitlog"), mapped=mapped)

    assert [found.log_offset for found in log.holding(b"needle")] == offsets
    assert sum(searched) < size
