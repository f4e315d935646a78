"""The record codec: golden bytes that Apache RocketMQ 5.5.0 wrote, and round trips of every combination."""

import gzip
import hashlib
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import CorruptRecord, InvalidRecord, MessageTooLarge
from pocketmq.proto.record import (
    MAGIC_V1,
    MAGIC_V2,
    NO_HOST,
    SYS_BORN_V6,
    SYS_STORE_V6,
    Host,
    Record,
    decode_record,
    decompress_body,
    encode_record,
    head_store_time_ms,
    log_offset_and_times,
    property_value,
)

_GOLDEN = json.loads((Path(__file__).parent.parent / "formats" / "records.json").read_text("utf-8"))

_TEXT = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
)
_I32 = st.integers(-(2**31), 2**31 - 1)
_I64 = st.integers(-(2**63), 2**63 - 1)
_HOSTS = st.builds(
    Host,
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    _I32,
)
_RECORDS = st.builds(
    Record,
    topic=_TEXT | st.just("%RETRY%" + "g" * 140),
    body=st.binary(max_size=300),
    queue_id=_I32,
    flag=_I32,
    sys_flag=_I32.map(lambda flag: flag & ~(SYS_BORN_V6 | SYS_STORE_V6)),
    queue_offset=_I64,
    log_offset=_I64,
    born_timestamp_ms=_I64,
    born_host=_HOSTS,
    store_timestamp_ms=_I64,
    store_host=_HOSTS,
    reconsume_times=_I32,
    prepared_transaction_offset=_I64,
    properties=st.dictionaries(_TEXT, _TEXT, max_size=6),
)
_GIVEN = [
    name for name in Record.__slots__ if name not in ("body_crc", "total_size", "magic", "sys_flag")
]


@pytest.mark.parametrize("golden", _GOLDEN, ids=[golden["name"] for golden in _GOLDEN])
def test_record_of_a_java_broker_decodes_to_what_java_reads(golden: dict[str, Any]) -> None:
    data, expected = bytes.fromhex(golden["hex"]), golden["expected"]

    record = decode_record(data)

    assert record.topic == expected["topic"]
    assert record.queue_id == expected["queueId"]
    assert record.queue_offset == expected["queueOffset"]
    assert record.log_offset == expected["physicalOffset"]
    assert record.flag == expected["flag"]
    assert record.sys_flag == expected["sysFlag"]
    assert record.born_timestamp_ms == expected["bornTimestamp"]
    assert record.store_timestamp_ms == expected["storeTimestamp"]
    assert record.reconsume_times == expected["reconsumeTimes"]
    assert record.prepared_transaction_offset == expected["preparedTransactionOffset"]
    assert record.message_id == expected["msgId"]
    assert record.body_crc == expected["bodyCRC"]
    assert record.crc_ok
    assert dict(record.properties) == expected["properties"]
    body = decompress_body(record.body, record.sys_flag)
    assert hashlib.sha256(body).hexdigest() == expected["bodySha256"]


@pytest.mark.parametrize("golden", _GOLDEN, ids=[golden["name"] for golden in _GOLDEN])
def test_encoding_what_was_decoded_gives_the_java_brokers_bytes(golden: dict[str, Any]) -> None:
    data = bytes.fromhex(golden["hex"])
    record = decode_record(data)
    size = int.from_bytes(data[-_property_length(record) - 2 :][:2], "big")

    assert encode_record(record, property_string=data[len(data) - size :]) == data


def _property_length(record: Record) -> int:
    """Length of the property string as Java 5.5.0 writes it: every pair ends with 0x02."""
    return sum(len(f"{name}{value}".encode()) + 2 for name, value in record.properties.items())


@given(_RECORDS)
def test_any_record_comes_back_as_it_was_encoded(record: Record) -> None:
    back = decode_record(encode_record(record))

    assert {name: getattr(back, name) for name in _GIVEN} == {
        name: getattr(record, name) for name in _GIVEN
    }
    assert back.magic == (MAGIC_V2 if len(record.topic.encode()) > 127 else MAGIC_V1)
    assert back.crc_ok


@given(_RECORDS)
def test_properties_without_the_last_separator_read_the_same(record: Record) -> None:
    data = encode_record(record)
    if not record.properties:
        return
    properties = data[-_property_length(record) :]

    shorter = encode_record(record, property_string=properties[:-1])

    assert dict(decode_record(shorter).properties) == dict(record.properties)


@given(_RECORDS, st.data())
def test_a_cut_record_is_refused(record: Record, data: st.DataObject) -> None:
    encoded = encode_record(record)
    cut = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(InvalidRecord):
        decode_record(encoded[:cut])


@given(st.binary(max_size=400))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_record(data)


@given(_RECORDS, st.data())
def test_a_mutated_record_decodes_or_is_refused_by_name(
    record: Record, data: st.DataObject
) -> None:
    encoded = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))

    try:
        decode_record(encoded)
    except InvalidRecord as error:
        assert error.details["field"] in (
            "totalSize",
            "magicCode",
            "bodyLength",
            "topicLength",
            "propertiesLength",
        )


@given(_RECORDS)
def test_a_head_tells_the_store_time_as_soon_as_it_holds_it(record: Record) -> None:
    data = encode_record(record)
    enough = 64 + 12 * record.born_host.is_v6
    assert head_store_time_ms(data[: enough - 1]) is None
    assert head_store_time_ms(data[:enough]) == record.store_timestamp_ms
    assert head_store_time_ms(data) == record.store_timestamp_ms


def test_properties_over_32767_bytes_are_refused() -> None:
    record = Record(topic="T", body=b"x", properties={"p": "v" * 32766})

    with pytest.raises(MessageTooLarge, match="32767"):
        encode_record(record)


def test_compressed_body_that_is_broken_is_corrupt() -> None:
    with pytest.raises(CorruptRecord):
        decompress_body(b"not zlib", 0x301)


def lz4_frame(body: bytes) -> bytes:
    import lz4.frame

    return bytes(lz4.frame.compress(body))


def zstd_frame(body: bytes) -> bytes:
    import zstandard

    return zstandard.compress(body)


def zstd_frame_of_unsaid_size(body: bytes) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(body) + compressor.flush()


PACKED: list[tuple[Callable[[bytes], bytes], int]] = [
    (zlib.compress, 0x301),
    (gzip.compress, 0x1),
    (lz4_frame, 0x101),
    (zstd_frame, 0x201),
    (zstd_frame_of_unsaid_size, 0x201),
]


@pytest.mark.parametrize(("compress", "sys_flag"), PACKED)
def test_a_bomb_is_not_decompressed_beyond_the_limit(
    compress: Callable[[bytes], bytes], sys_flag: int
) -> None:
    bomb = compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        for limit in (1_000, 1_000_000):
            with pytest.raises(MessageTooLarge, match=f"limit of {limit} .*body_max_bytes"):
                decompress_body(bomb, sys_flag, limit)
        with pytest.raises(MessageTooLarge, match="limit of 16777216"):
            decompress_body(bomb, sys_flag)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("compress", "sys_flag"), PACKED)
@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000])
def test_a_body_up_to_the_limit_is_decompressed_whole(
    compress: Callable[[bytes], bytes], sys_flag: int, size: int
) -> None:
    body = random.Random(size).randbytes(size)
    assert decompress_body(compress(body), sys_flag, 100_000) == body


@pytest.mark.parametrize(("compress", "sys_flag"), PACKED[:4])
def test_a_compressed_body_that_is_cut_off_is_corrupt(
    compress: Callable[[bytes], bytes], sys_flag: int
) -> None:
    whole = compress(random.Random(1).randbytes(1_000))
    for size in (0, 5, len(whole) // 2, len(whole) - 9):
        with pytest.raises(CorruptRecord):
            decompress_body(whole[:size], sys_flag)


def test_a_zstd_frame_that_takes_much_memory_before_it_is_read_is_refused() -> None:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(b"small") + compressor.flush()
    with pytest.raises(CorruptRecord, match="its window is larger"):
        decompress_body(frame, 0x201)


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_zlib_without_a_type_is_read_as_old_clients_wrote_it_and_gzip_as_new_ones(
    compress: Callable[[bytes], bytes],
) -> None:
    assert decompress_body(compress(b"body"), 0x1) == b"body"


@given(
    st.builds(Host, st.ip_addresses().map(lambda address: address.packed), st.integers(0, 65535))
)
def test_the_address_of_a_peer_is_read_as_it_is_written(host: Host) -> None:
    assert Host.of_peer(str(host)) == host


@pytest.mark.parametrize(
    "peer", ["", "nonsense", "unix:/run/x", "localhost:80", "127.0.0.1:", ":7"]
)
def test_a_peer_without_an_address_is_nobody(peer: str) -> None:
    assert Host.of_peer(peer) == NO_HOST


@given(st.binary(min_size=91, max_size=140), st.sampled_from([0, 16, 32, 48]))
def test_looking_for_single_fields_of_a_damaged_record_raises_nothing(
    data: bytes, hosts: int
) -> None:
    data = data[:36] + hosts.to_bytes(4) + data[40:]

    property_value(data, b"TAGS")
    log_offset_and_times(data)
