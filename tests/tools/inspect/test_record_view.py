"""`inspect STORE record OFFSET`: every byte of a record has its field."""

import random
from pathlib import Path
from typing import Any

import pytest

from pocketmq.tools.cli import run
from pocketmq.tools.inspect.record import record_fields, sys_flag_means

from ...recorded import expected, recorded_store
from .inspecting import document, lines, unchanged, view


def fields(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in found["fields"] if not field["is_property"]}


@pytest.mark.parametrize("name", ["basic", "encodings", "transactions", "prop-crc"])
def test_fields_cover_every_byte_in_order(name: str) -> None:
    for record in expected(name)["records"]:
        found = document(unchanged(name), "record", str(record["physicalOffset"]))

        at = 0
        for field in found["fields"]:
            assert (field["at"], len(field["hex"])) == (at, 2 * field["size"])
            at += field["size"]
        assert at == record["storeSize"] == found["store_size"]
        assert found["problems"] == []


@pytest.mark.parametrize("name", ["basic", "encodings", "transactions"])
def test_values_are_those_that_apache_reads(name: str) -> None:
    for record in expected(name)["records"]:
        found = document(unchanged(name), "record", str(record["physicalOffset"]))

        values = {name: field["value"] for name, field in fields(found).items()}
        assert values["totalSize"] == record["storeSize"]
        for same in ("bodyCRC", "queueId", "flag", "queueOffset", "physicalOffset", "sysFlag"):
            assert values[same] == record[same]
        for same in ("bornTimestamp", "storeTimestamp", "reconsumeTimes", "topic"):
            assert values[same] == record[same]
        assert values["bodyLength"] == record["rawBodyLength"]
        properties = {f["name"]: f["value"] for f in found["fields"] if f["is_property"]}
        assert properties == record["properties"]


def test_people_see_offset_bytes_name_and_meaning() -> None:
    told = view(unchanged("basic"), "record", "0").stdout

    assert "563 bytes, file 00000000000000000000 from byte 0" in told
    assert "da a3 20 a7" in told
    assert "DAA320A7: a message, V1" in told
    assert "fits the body" in told
    assert "127.0.0.1:36566" in told
    assert "54 41 47 53 01 e6 a0 87 e7 ad be 02" in told
    assert "190 bytes more: --all-bytes" in told
    assert "bytes more" not in view(unchanged("basic"), "record", "0", "--all-bytes").stdout


def test_bits_of_sys_flag_have_names() -> None:
    assert sys_flag_means(0) == "nothing"
    assert sys_flag_means(0x1 | 0x8 | 0x20 | 0x200) == (
        "compressed, store host IPv6, transaction committed, ZSTD"
    )
    assert sys_flag_means(0x8000) == "unknown bits 0x8000"


def test_a_place_within_a_record_names_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["inspect", str(unchanged("rolled")), "record", "500"])

    assert code == 3
    told = capsys.readouterr().err
    assert "it is in the record at 497, 430 bytes; the next one begins at 927" in told


@pytest.mark.parametrize(
    ("name", "offset", "words"),
    [
        ("rolled", "99999999", "is outside the log, 0 to 1,555,014"),
        ("cleaned", "0", "its file is gone"),
        ("damaged-missing-middle-log", "800000", "its file is missing"),
        ("rolled", "1555014", "the log ends at 1,555,014"),
        ("damaged-no-queues", "65530", "no record begins"),
    ],
)
def test_where_no_record_can_be_is_said(
    name: str, offset: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(unchanged(name)), "record", offset]) == 3
    assert words in capsys.readouterr().err


def test_damage_within_a_record_is_told(tmp_path: Path) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    data[28:36] = (77).to_bytes(8, "big")
    path.write_bytes(data)

    found = document(store, "record", "0")

    wanted = expected("rolled")["records"][0]["bodyCRC"]
    crc, place = found["problems"]
    assert crc.startswith("bodyCRC: the body's CRC is ")
    assert str(wanted) not in crc
    assert place == "physicalOffset: the record is at 0"


def test_any_bytes_give_fields_and_no_traceback() -> None:
    first = lines(unchanged("encodings"), "log", "--limit", "1")[0]
    whole = document(unchanged("encodings"), "record", "0")
    data = bytes.fromhex("".join(field["hex"] for field in whole["fields"]))
    rng = random.Random(7)
    assert len(data) == first["store_size"]

    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cut = rng.randrange(len(changed) + 1)
        found, _ = record_fields(memoryview(bytes(changed[:cut])), 0)
        assert all(0 <= field.at <= field.at + field.size <= cut for field in found)
