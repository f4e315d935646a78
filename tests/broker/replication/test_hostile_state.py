"""Frames of state with extreme values: each is refused, or what is kept of it can be read again after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.replication.file_stream import DELAYS_FILE, GROUPS_FILE, TOPICS_FILE
from pocketmq.broker.replication.state_timers import TIMERS_FILE
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.offsets_file import OFFSETS_FILE

from ...runs import Hand
from .state_pair import Follower, Link, Master

EXTREMES = [
    "-1",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1" + "0" * 4_000,
    "1e999",
    "-Infinity",
    "NaN",
    "null",
    "true",
    '"x"',
    r'"\ud800"',
    "[" * 100_000,
    "[]",
    "{}",
]
#: Content of a frame with a place for the value, by file.
CONTENTS = [
    (TOPICS_FILE, '{"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": ?}}}'),
    (TOPICS_FILE, '{"topicConfigTable": {"T": ?}}'),
    (TOPICS_FILE, '{"topicConfigTable": {"T": {"topicName": "T", "attributes": {"a": ?}}}}'),
    (TOPICS_FILE, '{"topicConfigTable": {}, "deleted": {"T": ?}}'),
    (GROUPS_FILE, '{"subscriptionGroupTable": {"G": {"groupName": "G", "retryMaxTimes": ?}}}'),
    (GROUPS_FILE, '{"subscriptionGroupTable": {"G": {"groupName": "G", "groupRetryPolicy": ?}}}'),
    (OFFSETS_FILE, '{"offsetTable": {"T@G": {"0": ?}}}'),
    (OFFSETS_FILE, '{"offsetTable": ?}'),
    (OFFSETS_FILE, '{"offsetTable": {"T@G": {"99999999999999999999": 1}}}'),
    (OFFSETS_FILE, '{"offsetTable": {"T@G\\ud800": {"0": 1}}}'),
    (DELAYS_FILE, '{"offsetTable": {"3": ?}}'),
    (DELAYS_FILE, '{"offsetTable": {"99999999999999999999": 1}}'),
    ("tables/statistics", '{"": {"T@G@0": ?}}'),
    (
        "tables/statistics",
        '{"": {"T@G@0": {"countedTo": ?, "lookedTo": 0, "lost": 0, "skipped": [], "looks": [],'
        ' "moves": []}}}',
    ),
    (
        "tables/statistics",
        '{"": {"T@G@0": {"countedTo": 9, "lookedTo": 9, "lost": 0, "looks": [], "moves": [],'
        ' "skipped": [["TAG", "a", 1, 0, 8, [?], 0]]}}}',
    ),
    ("tables/statistics", '{"": ?}'),
    ("tables/commit_texts", '{"": {"T@G@0": ?}}'),
    ("tables/commit_texts", '{"": {"T@G@0": [?, "text"]}}'),
    ("tables/commit_texts", '{"": {"T@G@0": [1, ?]}}'),
    ("tables/commit_texts", '{"": {"T@G@99999999999999999999": [1, "text"]}}'),
    ("tables/commit_texts", '{"": {"T@G@0\\ud800": [1, "text"]}}'),
    ("tables/commit_texts", '{"": {"T@' + "G" * 70_000 + '@0": [1, "text"]}}'),
    (TIMERS_FILE, '{"progress": {"last": [?, 0]}}'),
    (TIMERS_FILE, '{"progress": {"last": [0, ?]}}'),
    (TIMERS_FILE, '{"timingCount": {"T": ?}}'),
    (TIMERS_FILE, '{"begun": {"1000": [?, 2000]}}'),
    (TIMERS_FILE, '{"begun": {"1000": [0, ?]}}'),
    (TIMERS_FILE, '{"begun": {"99999999999999999999": [0, 0]}}'),
]


def pair(folder: Path) -> tuple[Master, Follower, Link]:
    clock = Hand()
    master, follower = Master(folder / "master", clock), Follower(folder / "follower", clock)
    link = Link(master, follower)
    link.settle()
    return master, follower, link


@pytest.mark.parametrize(("file", "content"), CONTENTS)
def test_what_a_follower_keeps_of_an_extreme_value_can_be_read_again(
    file: str, content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, value in enumerate(EXTREMES if "?" in content else [""]):
        folder = tmp_path / str(number)
        _, follower, _ = pair(folder)
        frame = pb.FollowState(
            epoch=1, file=file, version=1 << 32 | 99, whole=content.replace("?", value).encode()
        )
        try:
            follower.sink.take(frame, 0)
        except InvalidArgument as refused:
            assert len(str(refused)) < 400
        for _ in range(3):
            follower.clock.now_ms += 2_000
            follower.sink.tick()
        follower.sink.lead()
        follower.store.close()
        again = Follower(follower.path, follower.clock)
        again.tables()
        again.sink.lead()
        again.store.close()
    assert "not written" not in caplog.text, "what cannot be written is refused"


def test_a_follower_that_claims_a_version_never_sent_gets_all_and_is_not_in_sync(
    tmp_path: Path,
) -> None:
    master, _, _ = pair(tmp_path)
    master.put_topic("A")

    frames = master.source.hello(99, 3, {TOPICS_FILE: 1 << 32 | 2**32 - 1})

    assert [frame.WhichOneof("content") for _, frame in frames] == ["whole"]
    assert not master.source.has_all(3)
