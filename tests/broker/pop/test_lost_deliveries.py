"""What a start makes of deliveries whose files are damaged, torn, lost, or of another store."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidReceiptHandle
from pocketmq.store.format.table_frames import HEAD_BYTES

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen
from .table_files import FILES, end_of, files, newest


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


class TestLoss:
    """Whatever is lost of the journal, what is not finished comes again."""

    @pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
    async def test_without_the_folder_offsets_say_what_is_finished(
        self, tmp_path: Path, clean: bool
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c", b"d")
        a, b, c, _ = broker.pop()
        broker.ack(a, c)
        broker.offsets.save()
        await broker.stop(clean=clean)
        shutil.rmtree(tmp_path / "store/pocketmq")

        broker._begin()

        assert seen(broker.pop()) == [(b"b", 1), (b"c", 1), (b"d", 1)]
        with pytest.raises(InvalidReceiptHandle):
            broker.ack(b)
        await broker.stop()

    @pytest.mark.slow
    async def test_every_cut_leads_to_redelivery(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        broker = Popping(tmp_path)
        await broker.settle()
        broker.send(*(b"%d" % number for number in range(9)))
        one, _, three = (broker.pop(3) for _ in range(3))
        broker.ack(*one[1:], *three[:2])
        await broker.stop(clean=False)
        whole = newest(tmp_path).read_bytes()
        size = end_of(newest(tmp_path))
        for cut in range(0, size, 7):
            copy = tmp_path / f"{cut}"
            shutil.copytree(tmp_path / "store", copy / "store")
            newest(copy).write_bytes(whole[:cut])

            again = Popping(copy)

            await again.clock.advance(INVISIBLE_MS)
            got = bodies(again.pop())
            assert {b"0", b"3", b"4", b"5", b"8"} <= set(got)
            assert len(set(got)) == len(got)
            await again.stop(clean=False)
            shutil.rmtree(copy)
        assert "torn end" in caplog.text

    @pytest.mark.slow
    async def test_every_damage_leads_to_redelivery(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker = Popping(tmp_path)
        await broker.settle()
        broker.send(*(b"%d" % number for number in range(9)))
        one, _, three = (broker.pop(3) for _ in range(3))
        broker.ack(*one[1:])
        await asyncio.sleep(0)
        broker.ack(*three[:2])
        await broker.stop(clean=False)
        whole = newest(tmp_path).read_bytes()
        for at in range(HEAD_BYTES, end_of(newest(tmp_path)), 11):
            copy = tmp_path / f"{at}"
            shutil.copytree(tmp_path / "store", copy / "store")
            newest(copy).write_bytes(whole)
            flip(newest(copy), at)

            again = Popping(copy)

            await again.clock.advance(INVISIBLE_MS)
            got = bodies(again.pop())
            assert {b"0", b"3", b"4", b"5", b"8"} <= set(got)
            assert len(set(got)) == len(got)
            await again.stop(clean=False)
            shutil.rmtree(copy)
        assert "parts of the journal are missing" in caplog.text

    async def test_a_damaged_acknowledgement_costs_itself_and_those_behind_it(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path)
        await broker.settle()
        broker.send(b"a", b"b", b"c", b"d")
        a, b, c, _ = broker.pop()
        ends = []
        for delivery in (a, b, c):
            broker.ack(delivery)
            await broker.safe()
            ends.append(end_of(newest(tmp_path)))
            if delivery is a:
                broker.offsets.save()
        await broker.stop(clean=False)
        flip(newest(tmp_path), ends[1] - 1)

        broker._begin()

        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"b", 2), (b"c", 2), (b"d", 2)]
        await broker.stop()

    async def test_what_is_done_behind_damage_is_kept_again(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        await broker.settle()
        broker.send(b"a", b"b", b"c")
        a, b, c = broker.pop()
        broker.ack(a)
        await broker.safe()
        end = end_of(newest(tmp_path))
        broker.ack(b)
        await broker.safe()
        await broker.stop(clean=False)
        flip(newest(tmp_path), end - 1)
        broker._begin()
        await broker.settle()

        broker.ack(c)
        await broker.restart(clean=False)

        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"a", 2), (b"b", 2)]
        await broker.stop()

    @pytest.mark.parametrize("damaged", ["before the reset", "the reset"])
    async def test_a_reset_counts_whatever_is_damaged(self, tmp_path: Path, damaged: str) -> None:
        broker = Popping(tmp_path)
        await broker.settle()
        broker.send(b"a", b"b", b"c", b"d")
        a, b, *rest = broker.pop()
        broker.ack(a)
        await broker.safe()
        before = end_of(newest(tmp_path))
        broker.ack(b, *rest)
        broker.pops.moved(GROUP, TOPIC, 0, 1)
        await broker.safe()
        broker.offsets.save()
        reset = end_of(newest(tmp_path))
        await broker.clock.advance(1_000)  # So the reset is not the last frame.
        await broker.stop(clean=False)
        flip(newest(tmp_path), before - 1 if damaged == "before the reset" else reset - 1)

        broker._begin()

        assert bodies(broker.pop()) == [b"b", b"c", b"d"]
        await broker.stop()

    async def test_of_a_group_that_was_reset_behind_damage_all_is_known(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path, queues=2)
        await broker.settle()
        broker.send(b"a", b"b")
        broker.send(b"other", queue=1)
        broker.ack(*(one for one in broker.pop() if one.queue == 0))
        await broker.safe()
        damaged = end_of(newest(tmp_path)) - 1
        broker.pops.moved(GROUP, TOPIC, 0, 0)
        a, b = broker.pop()
        broker.ack(b)
        broker.offsets.save()
        await broker.safe()
        await broker.stop(clean=False)
        flip(newest(tmp_path), damaged)

        broker._begin()

        broker.ack(a)
        await broker.clock.advance(INVISIBLE_MS)
        assert seen(broker.pop()) == [(b"other", 2)]
        await broker.stop()

    async def test_a_damaged_snapshot_is_as_none(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c")
        _, b, c = broker.pop()
        broker.ack(b)
        await broker.restart(clean=False)
        await broker.settle()
        broker.ack(c)
        broker.offsets.save()
        await broker.stop(clean=False)
        (snapshot,) = files(tmp_path, "snapshot-3-")
        flip(snapshot, HEAD_BYTES + 20)

        broker._begin()

        assert seen(broker.pop()) == [(b"a", 1), (b"b", 1), (b"c", 1)]
        assert "tables incomplete tables=deliveries" in caplog.text
        await broker.stop()


class TestOthers:
    """Another broker ran on the store, which knows nothing of the journal."""

    async def test_a_stop_that_was_not_ours_makes_it_void(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b")
        broker.ack(broker.pop()[1])
        broker.offsets.save()
        await broker.stop(clean=False)
        Popping(tmp_path).store.close()

        broker._begin()

        assert seen(broker.pop()) == [(b"a", 1), (b"b", 1)]
        assert "tables not closed by the last clean stop" in caplog.text
        await broker.stop()

    async def test_another_log_makes_it_void(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b")
        broker.ack(*broker.pop())
        broker.store.flush()
        await broker.clock.advance(1_000)
        await broker.stop(clean=False)
        other = Popping(tmp_path / "other")
        other.send(b"x", b"y", b"z")
        await other.stop(clean=False)
        shutil.rmtree(tmp_path / "other" / FILES)
        shutil.move(tmp_path / FILES, tmp_path / "other" / FILES)

        other._begin()

        assert bodies(other.pop()) == [b"x", b"y", b"z"]
        assert "tables discarded, the log is another one" in caplog.text
        await other.stop()

    async def test_offsets_that_somebody_moved_back_count(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b", b"c")
        broker.ack(*broker.pop())
        await broker.stop()
        offsets = tmp_path / "store/config/consumerOffset.json"
        offsets.write_text(offsets.read_text().replace("0:3", "0:1"))

        broker._begin()

        assert bodies(broker.pop()) == [b"b", b"c"]
        await broker.stop()
