"""The format `rocketmq` in Spark against a real broker: batches, streams, the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pocketmq.client import Admin, Message, Producer
from pocketmq.proto.errors import ConfigError
from pocketmq.tools.spark import without_repeats
from pocketmq.tools.spark.live.row_keys import SPARK_SEQUENCE

from ....served import ServerProcess
from .load import Load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(240)]

_numbers = count()
QUEUES = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("live-spark") / "store") as started:
        yield started


class Topic:
    """A topic of its own, and what a test does with it."""

    def __init__(self, spark: SparkSession, server: ServerProcess, name: str) -> None:
        self.spark = spark
        self.nameserver = server.nameserver
        self.name = name

    def send(self, begin: int, end: int) -> None:
        """Send messages whose bodies are the numbers from BEGIN up to END, round the queues."""
        with Producer(self.nameserver) as producer:
            producer.send_many(
                Message(
                    self.name,
                    b"%d" % at,
                    queue=at % QUEUES,
                    key=f"k{at}",
                    tag="even" if at % 2 == 0 else "odd",
                )
                for at in range(begin, end)
            )

    def read(self, **options: Any) -> DataFrame:
        return self._with(self.spark.read, options).load()

    def stream(self, **options: Any) -> DataFrame:
        return self._with(self.spark.readStream, options).load()

    def _with(self, reader: Any, options: dict[str, Any]) -> Any:
        given = {"nameServer": self.nameserver, "subscribe": self.name, **options}
        return reader.format("rocketmq").options(**given)

    def numbers(self, frame: DataFrame) -> list[int]:
        """Return the bodies of FRAME, sorted."""
        return sorted(int(bytes(row.body)) for row in frame.select("body").collect())

    def offsets(self, group: str) -> dict[int, int]:
        """Return where GROUP stands, by queue."""
        with Admin(self.nameserver) as admin:
            positions = admin.group_offsets(group, self.name)
        return {one.queue.number: one.offset for one in positions}


@pytest.fixture
def make(spark: SparkSession, server: ServerProcess) -> Callable[[], Topic]:
    """Makes topics."""

    def topic() -> Topic:
        name = f"spark-{next(_numbers)}"
        with Admin(server.nameserver) as admin:
            admin.create_topic(name, queues=QUEUES)
        return Topic(spark, server, name)

    return topic


@pytest.fixture
def topic(make: Callable[[], Topic]) -> Topic:
    return make()


def run(frame: DataFrame, folder: Path, **sink: str) -> list[dict[str, Any]]:
    """Run the stream FRAME until it has read what is there; return the progress of its batches."""
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    if sink:
        query = writer.format("rocketmq").options(**sink).start()
    else:
        query = writer.format("parquet").option("path", str(folder / "out")).start()
    query.awaitTermination()
    return [dict(one) for one in query.recentProgress if one["numInputRows"]]


# --- batches


def test_a_batch_reads_each_message_with_its_columns(topic: Topic) -> None:
    topic.send(0, 3_000)

    rows = topic.read(minPartitions=5).select("queue", "queue_offset", "keys", "body").collect()

    assert sorted(int(bytes(row.body)) for row in rows) == list(range(3_000))
    for row in rows:
        number = int(bytes(row.body))
        assert (row.queue, row.queue_offset) == (number % QUEUES, number // QUEUES)
        assert row["keys"] == f"k{number}"


def test_the_columns_of_a_schema_are_those_that_are_read(topic: Topic) -> None:
    topic.send(0, 4)

    frame = topic.spark.read.format("rocketmq").schema("raw_properties string, queue_offset bigint")
    rows = frame.options(nameServer=topic.nameserver, subscribe=topic.name).load().collect()

    assert all("KEYS\x01k" in row.raw_properties for row in rows)
    assert sorted(row.queue_offset for row in rows) == [0, 0, 0, 1]


def test_brokers_leave_out_what_the_filter_does_not_want(topic: Topic) -> None:
    topic.send(0, 200)

    found = topic.read(subExpression="even", filterType="TAG")

    assert topic.numbers(found) == list(range(0, 200, 2))


def test_kafkas_names_are_there_for_kafkas_jobs(topic: Topic) -> None:
    topic.send(0, 1)

    frame = topic.read(schemaStyle="kafka", includeHeaders=True)
    (row,) = frame.selectExpr("*", "map_from_entries(headers)['TAGS'] AS tag").collect()

    assert frame.columns[:4] == ["key", "value", "topic", "partition"]
    assert frame.columns[4:] == ["offset", "timestamp", "timestampType", "headers"]
    assert (bytes(row.key), bytes(row.value), row.topic) == (b"k0", b"0", topic.name)
    assert (row.partition, row.offset, row.timestampType) == (0, 0, 1)
    assert bytes(row.tag) == b"even"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, ("startingoffset", "startingOffsets")),
        ({"subscribe": "never-made"}, ("never-made",)),
        ({"rocketmq.secretKey": "hunter2"}, ("secretkey",)),
    ],
    ids=["option", "topic", "secret"],
)
def test_what_cannot_be_read_is_told(
    topic: Topic, options: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(Exception) as refusal:  # noqa: PT011  Spark's own class, around ours
        topic.read(**options).count()

    for word in words:
        assert word in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


# --- streams


def test_a_stream_reads_on_where_it_ended_and_its_group_stands_there(
    topic: Topic, tmp_path: Path
) -> None:
    topic.send(0, 900)
    options = {"consumerGroup": "pipeline", "startingOffsets": "earliest"}

    batches = run(topic.stream(maxOffsetsPerTrigger=400, **options), tmp_path)
    after_first = topic.offsets("pipeline")
    topic.send(900, 1_000)
    more = run(topic.stream(maxOffsetsPerTrigger=400, **options), tmp_path)
    nothing = run(topic.stream(maxOffsetsPerTrigger=400, **options), tmp_path)

    out = topic.spark.read.parquet(str(tmp_path / "out"))
    assert topic.numbers(out) == list(range(1_000))
    assert [one["numInputRows"] for one in batches] == [400, 400, 100]
    assert [one["numInputRows"] for one in more] == [100]
    assert nothing == []
    assert after_first == {0: 300, 1: 300, 2: 300}
    assert topic.offsets("pipeline") == {0: 334, 1: 333, 2: 333}


def test_progress_tells_how_far_the_stream_has_come(topic: Topic, tmp_path: Path) -> None:
    topic.send(0, 30)

    (batch,) = run(topic.stream(startingOffsets="earliest"), tmp_path)

    (source,) = batch["sources"]
    assert f'"{topic.name}"' in str(source["endOffset"])
    assert f'"{topic.name}"' in str(source["latestOffset"])


def test_a_broker_under_load_is_read_without_error_or_repeat(topic: Topic, tmp_path: Path) -> None:
    writer = topic.stream(startingOffsets="earliest", consumerGroup="loaded").writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.format("parquet").option("path", str(tmp_path / "out")).start()
    query.processAllAvailable()

    with Load(topic.nameserver, topic.name) as load:
        batches = [topic.numbers(topic.read(minPartitions=4)) for _ in range(3)]
    query.processAllAvailable()
    query.stop()

    for numbers in batches:
        assert len(set(numbers)) == len(numbers)
    assert 0 < len(batches[0]) <= len(batches[1]) <= len(batches[2]) <= load.count
    assert topic.numbers(topic.spark.read.parquet(str(tmp_path / "out"))) == list(range(load.count))


# --- the sink


def test_what_was_read_is_written_as_it_is(topic: Topic, make: Callable[[], Topic]) -> None:
    topic.send(0, 500)
    copy = make()

    writer = topic.read().write.format("rocketmq").mode("append")
    writer.options(nameServer=topic.nameserver, topic=copy.name).save()

    rows = copy.read().select("body", "tags", "keys", "properties").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(500))
    assert {row.tags for row in rows} == {"even", "odd"}
    assert {row["keys"] for row in rows} == {f"k{at}" for at in range(500)}
    assert len({row.properties[SPARK_SEQUENCE] for row in rows}) == 500


def test_a_batch_that_is_sent_again_is_stored_once_under_its_job(
    topic: Topic, make: Callable[[], Topic]
) -> None:
    topic.send(0, 300)
    copy = make()
    for _ in range(2):
        writer = topic.read().select("body").write.format("rocketmq").mode("append")
        writer.options(
            nameServer=topic.nameserver, topic=copy.name, idempotence="true", jobId="nightly"
        ).save()

    assert copy.numbers(copy.read()) == list(range(300))


def test_a_reader_drops_repeats_by_their_key(topic: Topic, make: Callable[[], Topic]) -> None:
    topic.send(0, 100)
    copy = make()
    for _ in range(2):
        writer = topic.read().select("body").write.format("rocketmq").mode("append")
        writer.options(nameServer=topic.nameserver, topic=copy.name, jobId="nightly").save()
    copy.send(100, 110)

    everything = copy.read()
    once = without_repeats(everything)

    assert everything.count() == 210
    assert once.columns == everything.columns
    assert copy.numbers(once) == list(range(110))


def test_a_stream_drops_repeats_within_a_time(
    topic: Topic, make: Callable[[], Topic], tmp_path: Path
) -> None:
    copy = make()
    topic.send(0, 20)
    for _ in range(2):
        writer = topic.read().select("body").write.format("rocketmq").mode("append")
        writer.options(nameServer=topic.nameserver, topic=copy.name, jobId="nightly").save()

    run(without_repeats(copy.stream(startingOffsets="earliest"), within="1 hour"), tmp_path)

    assert topic.numbers(topic.spark.read.parquet(str(tmp_path / "out"))) == list(range(20))


def test_what_repeats_are_told_by_has_to_be_there(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="properties, body"):
        without_repeats(topic.read().drop("properties", "body"))
    with pytest.raises(ConfigError, match="within"):
        without_repeats(topic.stream())


def test_a_stream_from_topic_to_topic_repeats_nothing_of_a_batch_that_runs_again(
    topic: Topic, make: Callable[[], Topic], tmp_path: Path
) -> None:
    topic.send(0, 400)
    copy = make()
    sink = {"nameServer": topic.nameserver, "topic": copy.name, "idempotence": "true"}
    stream = topic.stream(startingOffsets="earliest", maxOffsetsPerTrigger=150).select("body")
    run(stream, tmp_path, **sink)

    # As after a crash before Spark noted that the last batch was done.
    done = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name)
    )
    done[-1].unlink()
    (done[-1].parent / f".{done[-1].name}.crc").unlink(missing_ok=True)
    again = run(stream, tmp_path, **sink)

    assert [one["batchId"] for one in again] == [int(done[-1].name)]
    assert copy.numbers(copy.read()) == list(range(400))


def test_a_schema_with_another_type_is_told(topic: Topic) -> None:
    reader = topic.spark.read.format("rocketmq").schema("queue string")

    with pytest.raises(Exception, match="queue is int, not string"):
        reader.options(nameServer=topic.nameserver, subscribe=topic.name).load().count()


def test_topics_are_not_overwritten(topic: Topic) -> None:
    frame = topic.read().select("body")

    with pytest.raises(Exception, match="append"):
        frame.write.format("rocketmq").mode("overwrite").option("topic", topic.name).save()


def test_a_row_that_is_no_message_fails_its_task_and_is_named(topic: Topic) -> None:
    frame = topic.spark.sql("SELECT CAST('' AS BINARY) AS body")

    with pytest.raises(Exception, match="row 0 of its task: body is empty"):
        frame.write.format("rocketmq").mode("append").options(
            nameServer=topic.nameserver, topic=topic.name
        ).save()
