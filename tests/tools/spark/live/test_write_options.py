"""Options for writing."""

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.spark.live.write_options import refuse_overwrite, write_options


def test_nothing_has_to_be_said() -> None:
    options = write_options({})

    assert options.topic == ""
    assert options.acks is None
    assert options.compression == "zlib"
    assert not options.idempotence


def test_what_is_said_counts() -> None:
    options = write_options(
        {
            "topic": "t",
            "acks": "disk",
            "compressType": "none",
            "compressOverBytes": "0",
            "idempotence": "TRUE",
            "jobId": "replay-1",
            "sendTimeoutMs": "5",
        }
    )

    assert (options.topic, options.acks, options.compression) == ("t", "disk", None)
    assert (options.compress_above_bytes, options.send_timeout_ms) == (0, 5)
    assert options.idempotence
    assert options.job_id == "replay-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "a\0b"),
        ("acks", "all"),
        ("compressType", "gzip"),
        ("compressOverBytes", "-1"),
        ("jobId", "x" * 257),
        ("subscribe", "t"),
        ("producerGroup", "a\0b"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        write_options({name: value})


def test_topics_are_never_overwritten() -> None:
    refuse_overwrite(False)

    with pytest.raises(ConfigError, match="append"):
        refuse_overwrite(True)
