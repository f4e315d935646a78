"""Questions to a real broker in a process of its own, by way of its name server and without."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: run `make dev`")

from pocketmq.client import Admin, Message, Producer, Queue
from pocketmq.client.connections import GrpcConnections
from pocketmq.client.loop_thread import LoopThread
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConnectionLost,
    InvalidArgument,
    NotAuthenticated,
    QueueNotFound,
    RouteNotFound,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.message_id import UniqueIds
from pocketmq.proto.properties import PRODUCER_SEQUENCE, encode_properties
from pocketmq.proto.record import NO_HOST, encode_run
from pocketmq.tools.spark.live.cluster import LiveCluster
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.place import Place
from pocketmq.tools.spark.live.plans import StreamPlan
from pocketmq.tools.spark.live.range_reading import fetched
from pocketmq.tools.spark.live.ranges import QueueRange
from pocketmq.tools.spark.live.read_options import Choice, Pulling, read_options
from pocketmq.tools.spark.live.row_keys import SPARK_SEQUENCE, row_key, task_key
from pocketmq.tools.spark.live.row_sender import ROWS_A_QUEUE, RowSender
from pocketmq.tools.spark.live.write_options import write_options

from ....served import ServerProcess

pytestmark = pytest.mark.processes

TOPIC = "live"
_numbers = count()
IMPATIENT = Pulling(retries=1, retry_interval_ms=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("live") / "store") as started:
        yield started


@pytest.fixture
def topic(server: ServerProcess) -> str:
    """A topic of its own, with three queues."""
    name = f"{TOPIC}-{next(_numbers)}"
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=3)
    return name


@pytest.fixture(params=["name-server", "endpoint"])
def cluster(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[LiveCluster]:
    is_broker = request.param == "endpoint"
    address = str(server.ready["broker"]) if is_broker else server.nameserver
    opened = LiveCluster(Place((address,), are_brokers=is_broker), IMPATIENT)
    yield opened
    opened.close()


def fill(server: ServerProcess, topic: str, counts: tuple[int, ...]) -> None:
    with Producer(server.nameserver) as producer:
        producer.send_many(
            Message(topic, b"%d" % at, queue=number, tag="even" if at % 2 == 0 else "odd")
            for number, amount in enumerate(counts)
            for at in range(amount)
        )


def queues_of(cluster: LiveCluster, topic: str) -> list[Queue]:
    return sorted(cluster.bounds(Choice(topics=(topic,)), strict=True))


def test_bounds_and_records_are_those_of_the_broker(
    server: ServerProcess, cluster: LiveCluster, topic: str
) -> None:
    fill(server, topic, (500, 3, 0))

    bounds = cluster.bounds(Choice(topics=(topic,)), strict=True)
    first = min(bounds)
    parts = fetched(cluster, QueueRange(first, 20, 480), None, Losses(True))
    bodies = [int(part.run.body(row)) for part in parts for row in range(part.begin, part.end)]

    assert [tuple(bounds[queue]) for queue in sorted(bounds)] == [(0, 500), (0, 3), (0, 0)]
    assert bodies == list(range(20, 480))


def test_marks_tell_a_topic_that_was_created_again_from_the_one_before(
    server: ServerProcess, cluster: LiveCluster, topic: str
) -> None:
    fill(server, topic, (20, 3, 0))
    first, second, third = queues_of(cluster, topic)
    positions = {first: 20, second: 3, third: 0}
    plan = StreamPlan(
        read_options({"subscribe": topic, "failOnDataLoss": "false"}, streaming=True),
        cluster,
        VirtualClock(),
    )
    before = plan.marks(positions)
    assert set(before) == {first, second}
    assert plan.latest(positions, before) == positions
    assert cluster.marks({first: 21, second: 4}) == {}  # Such messages are not there.

    with Admin(server.nameserver) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=3)
    fill(server, topic, (25, 2, 0))

    end = plan.latest(positions, before)
    assert end == {first: 25, second: 2, third: 0}
    after = plan.marks(end, positions, before)
    assert plan.ranges(positions, end, before, after) == [
        QueueRange(first, 0, 25),
        QueueRange(second, 0, 2),
    ]


def test_a_pattern_finds_topics_and_an_assignment_queues(cluster: LiveCluster, topic: str) -> None:
    broker = queues_of(cluster, topic)[0].broker
    one = Queue(topic, broker, 1)

    assert len(cluster.bounds(Choice(pattern=f"{topic[:-1]}.*|x"), strict=True)) >= 3
    assert set(cluster.bounds(Choice(queues=(one,)), strict=True)) == {one}
    nine = Queue(topic, broker, 9)
    assert cluster.denied([one, nine, Queue(topic, "nobody", 0)]) == {nine}


def test_what_is_not_there_is_an_error_or_left_out(cluster: LiveCluster, topic: str) -> None:
    broker = queues_of(cluster, topic)[0].broker
    unknown = Choice(queues=(Queue(topic, broker, 1), Queue(topic, broker, 9)))

    with pytest.raises(TopicNotFound, match="never-made"):
        cluster.bounds(Choice(topics=("never-made",)), strict=True)
    with pytest.raises(QueueNotFound, match=":9"):
        cluster.bounds(unknown, strict=True)
    assert cluster.bounds(Choice(topics=("never-made",)), strict=False) == {}
    assert set(cluster.bounds(unknown, strict=False)) == {Queue(topic, broker, 1)}


def test_a_topic_that_is_deleted_is_gone_though_its_route_was_known(
    server: ServerProcess, cluster: LiveCluster, topic: str
) -> None:
    choice = Choice(topics=(topic,))
    assert len(cluster.bounds(choice, strict=True)) == 3
    with Admin(server.nameserver) as admin:
        admin.delete_topic(topic)

    assert cluster.bounds(choice, strict=False) == {}


def test_offsets_of_a_group_are_kept_by_the_broker(cluster: LiveCluster, topic: str) -> None:
    queues = queues_of(cluster, topic)
    group = f"group-{topic}"

    cluster.commit(group, {queues[0]: 0, queues[2]: 0})

    assert cluster.committed(group, queues) == {queues[0]: 0, queues[2]: 0}
    with pytest.raises(InvalidArgument):
        cluster.commit(group, {queues[0]: 99})


def test_an_instant_is_found_by_store_time(
    server: ServerProcess, cluster: LiveCluster, topic: str
) -> None:
    fill(server, topic, (5, 0, 0))
    queues = queues_of(cluster, topic)

    found = cluster.at_times({queues[0]: 0, queues[1]: 0})

    assert found == {queues[0]: 0, queues[1]: None}
    assert cluster.at_times({queues[0]: 1 << 50}) == {queues[0]: None}


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    for is_broker in (False, True):
        place = Place(("127.0.0.1:1",), are_brokers=is_broker)
        nobody = LiveCluster(place, IMPATIENT)
        try:
            with pytest.raises((RouteNotFound, ConnectionLost), match=r"127\.0\.0\.1:1"):
                nobody.bounds(Choice(topics=("t",)), strict=True)
        finally:
            nobody.close()


def test_calls_are_signed_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.yaml"
    users.touch(0o600)
    users.write_text(json.dumps({"users": {"spark": {"secret": "s", "type": "Super"}}}))
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("s")
    config = tmp_path / "pocketmq.yaml"
    config.write_text(
        json.dumps({part: {"users": str(users)} for part in ("broker", "nameserver")})
    )
    with ServerProcess(tmp_path / "store", "--config", str(config)) as server:
        with Admin(server.nameserver, user="spark", secret="s") as admin:
            admin.create_topic("t", queues=1)
        nobody = LiveCluster(Place((server.nameserver,)), IMPATIENT)
        with pytest.raises(NotAuthenticated):
            nobody.bounds(Choice(topics=("t",)), strict=True)
        nobody.close()
        monkeypatch.setenv("POCKETMQ_USER", "spark")
        monkeypatch.setenv("POCKETMQ_SECRET_FILE", str(secret))

        send(server, "t", 1, range(3))

        assert stored(server, "t") == [0, 1, 2]


def test_a_broker_that_is_killed_is_away_and_not_gone(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store")
    with Admin(server.nameserver) as admin:
        admin.create_topic("t", queues=1)
    cluster = LiveCluster(Place((server.nameserver,)), IMPATIENT)
    choice = Choice(topics=("t",))
    (queue,) = cluster.bounds(choice, strict=True)

    server.kill()

    assert cluster.bounds(choice, strict=False) == {}
    assert cluster.denied([queue]) == set()
    cluster.close()


@pytest.mark.long
def test_a_broker_that_comes_back_elsewhere_is_found_at_once(tmp_path: Path) -> None:
    nameserver = ServerProcess(None, "--port", "0", verb="nameserver")
    where = "--nameserver", nameserver.nameserver, "--port", "0", "--name", "away"
    choice = Choice(topics=("t",))
    with nameserver:
        broker = ServerProcess(tmp_path / "store", *where, verb="broker")
        with Admin(nameserver.nameserver) as admin:
            admin.create_topic("t", queues=1)
        cluster = LiveCluster(Place((nameserver.nameserver,)), IMPATIENT)
        before = cluster.bounds(choice, strict=True)

        broker.kill()
        away = cluster.bounds(choice, strict=False)
        with ServerProcess(tmp_path / "store", *where, verb="broker"):
            denied = cluster.denied(before)
            back = cluster.bounds(choice, strict=False)
            cluster.close()

    assert away == {}
    assert denied == set()
    assert back == before


# --- rows


def messages(topic: str, task: int, rows: range) -> list[Message]:
    return [
        Message(topic, b"%d" % row, properties={SPARK_SEQUENCE: row_key(task, row)}) for row in rows
    ]


def send(server: ServerProcess, topic: str, task: int, *lists: range, **given: str) -> None:
    options = write_options({"nameServer": server.nameserver, **given})
    sender = RowSender(options, task, 0)
    for rows in lists:
        sender.put(messages(topic, task, rows))
    sender.finish()
    sender.close()


def stored(server: ServerProcess, topic: str) -> list[int]:
    cluster = LiveCluster(Place((server.nameserver,)), IMPATIENT)
    bounds = cluster.bounds(Choice(topics=(topic,)), strict=True)
    rows = [
        int(part.run.body(row))
        for queue, (least, end) in bounds.items()
        for part in fetched(cluster, QueueRange(queue, least, end), None, Losses(True))
        for row in range(part.begin, part.end)
    ]
    cluster.close()
    return sorted(rows)


def test_rows_are_sent_in_lists(server: ServerProcess, topic: str) -> None:
    send(server, topic, 1, range(0, 10), range(10, 10), range(10, 25))

    assert stored(server, topic) == list(range(25))


def test_a_task_that_runs_again_is_stored_once_with_idempotence(
    server: ServerProcess, topic: str
) -> None:
    task, total = task_key("query", 0, 0), 3 * ROWS_A_QUEUE + 7

    send(server, topic, task, range(0, 1_500), range(1_500, 2_000), idempotence="true")
    send(server, topic, task, range(0, 900), range(900, total), idempotence="true")
    send(server, topic, task, range(0, total), idempotence="true")

    assert stored(server, topic) == list(range(total))


def test_a_task_that_runs_again_is_stored_twice_without(server: ServerProcess, topic: str) -> None:
    send(server, topic, 5, range(3))
    send(server, topic, 5, range(3))

    assert stored(server, topic) == [0, 0, 1, 1, 2, 2]


def test_tasks_of_other_batches_are_no_repeats(server: ServerProcess, topic: str) -> None:
    for batch in range(3):
        send(server, topic, task_key("query", batch, 0), range(5), idempotence="true")

    assert stored(server, topic) == sorted(list(range(5)) * 3)


def test_a_task_whose_numbers_were_used_up_by_an_earlier_try_is_sent_all_the_same(
    server: ServerProcess, topic: str
) -> None:
    task = task_key("fenced", 0, 0)
    fence(server, Queue(topic, "broker-a", 0), task)

    send(server, topic, task, range(1, 10), range(10, 20), idempotence="true")

    assert set(stored(server, topic)) == set(range(20))


def fence(server: ServerProcess, queue: Queue, task: int) -> None:
    """Have the broker know of a later epoch, in QUEUE, of the producer that the task with key TASK is."""
    seeded = Random(task)
    UniqueIds(lambda: 0, 0, seeded)
    producer_id = seeded.getrandbits(63)
    numbers = f"{producer_id:x}:1:0:1"
    records, sizes = encode_run(
        queue.topic,
        queue.number,
        [(b"0", encode_properties({PRODUCER_SEQUENCE: numbers}))],
        born_timestamp_ms=0,
        born_host=NO_HOST,
    )
    run = pb.ProduceRun(
        topic=queue.topic,
        queue=queue.number,
        records=records,
        sizes=sizes,
        producer_id=producer_id,
        producer_epoch=1,
    )

    async def produce() -> None:
        connections = GrpcConnections()
        await connections.to(str(server.ready["broker"])).produce(run, 5_000)
        await connections.close()

    portal = LoopThread.acquire()
    portal.run(produce())
    portal.release()
