"""A Deny on one topic and one group hides these alone: lists, pages and verbs show everything else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.broker.broker import Network
from pocketmq.client import AsyncAdmin, AsyncProducer, Message, Queue
from pocketmq.proto.access.signing import signed_now
from pocketmq.proto.errors import NotAuthorized, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.store.recovery.report import RecoveryReport
from pocketmq.tools import consume
from pocketmq.tools.cli import run
from pocketmq.tools.console import api
from pocketmq.tools.console.site import site

from ..fakes import FaultyDisk
from .members import join_of, member
from .test_console_users import basic
from .test_users import ROOT, cluster
from .v2_caller import SERVICE
from .whole_broker import Peer

POLICIES = [
    {"resource": "Topic:*", "actions": "Sub,Get,List"},
    {"resource": "Group:*", "actions": "Sub,Get,List"},
    {"resource": "Cluster:*", "actions": "Get,List"},
    {"resource": "Topic:secret", "actions": "All", "decision": "Deny"},
    {"resource": "Group:hidden", "actions": "All", "decision": "Deny"},
]
USERS: dict[str, Any] = {
    "root": {"secret": "root-secret", "type": "Super"},
    "eve": {"secret": "eve-secret", "policies": POLICIES},
    # She has rights on a topic, and on no group.
    "amy": {"secret": "amy-secret", "policies": [{"resource": "Topic:open", "actions": "Sub"}]},
    "tom": {"secret": "tom-secret", "policies": [{"resource": "Topic:*", "actions": "Get,List"}]},
    # From one address he may see less.
    "sam": {
        "secret": "sam-secret",
        "policies": [
            *POLICIES[:3],
            POLICIES[3] | {"sources": ["127.0.0.2/32"]},
        ],
    },
    "gus": {
        "secret": "gus-secret",
        "policies": [*POLICIES[:3], POLICIES[4]],
    },
    # She may list everything, and look at all but the topic and the group.
    "lea": {
        "secret": "lea-secret",
        "policies": [
            {"resource": "Topic:*", "actions": "Sub,List"},
            {"resource": "Group:*", "actions": "Sub,List"},
            {"resource": "Topic:secret", "actions": "Sub", "decision": "Deny"},
            {"resource": "Group:hidden", "actions": "Sub", "decision": "Deny"},
        ],
    },
}


EVE: dict[str, Any] = {"user": "eve", "secret": "eve-secret"}


class SignedChannel:
    """A channel to ADDRESS whose calls USER signs, as `Peer` takes it."""

    def __init__(self, address: str, user: str, client_id: str = "c") -> None:
        self.plain: Any = grpc.aio.insecure_channel(address)
        self._signature = (
            *signed_now(user, f"{user}-secret"),
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
        )

    def unary_unary(self, *names: Any) -> Any:
        call = self.plain.unary_unary(*names)
        return lambda request: call(request, metadata=self._signature)

    def stream_stream(self, *names: Any) -> Any:
        call = self.plain.stream_stream(*names)
        return lambda: call(metadata=self._signature)


class Served:
    """A cluster with the topics open and secret, and the groups reader and hidden, which read both."""

    def __init__(self, nameserver: str, broker: str) -> None:
        self.nameserver = nameserver
        self.broker = broker

    async def post(self, path: str, user: str = "eve") -> tuple[int, Any]:
        """Return status and document of what USER has done by a POST without a body at PATH."""
        _, session = await self.get("/api/session", user=user)

        def asked() -> tuple[int, Any]:
            host, _, port = self.broker.rpartition(":")
            connection = HTTPConnection(host, int(port), timeout=120)
            headers = {
                "authorization": basic(user, f"{user}-secret"),
                "x-pocketmq-token": session["token"],
            }
            connection.request("POST", path, "{}", headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, json.loads(body)

        return await asyncio.to_thread(asked)

    @asynccontextmanager
    async def peer(self, user: str = "eve", client_id: str = "c") -> AsyncIterator[Peer]:
        """Yield a client of the broker whose bare calls USER signs."""
        channel: Any = SignedChannel(self.broker, user, client_id)
        async with channel.plain:
            yield Peer(channel)

    @asynccontextmanager
    async def official_consumer(self, client_id: str, group: str) -> AsyncIterator[None]:
        """Have an official client of root consume both topics for GROUP."""
        settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        for topic in ("open", "secret"):
            settings.subscription.subscriptions.add(
                topic=v2.Resource(name=topic),
                expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            )
        async with self.peer("root", client_id) as peer:
            stream = peer.channel.stream_stream(
                SERVICE + "Telemetry",
                v2.TelemetryCommand.SerializeToString,
                v2.TelemetryCommand.FromString,
            )()
            await stream.write(v2.TelemetryCommand(settings=settings))
            assert (await stream.read()).HasField("settings")
            yield
            await stream.done_writing()

    async def get(self, path: str, user: str = "eve", source: str = "127.0.0.1") -> tuple[int, Any]:
        """Return status and document, or page, that USER gets at PATH from the address SOURCE."""

        def asked() -> tuple[int, Any]:
            host, _, port = self.broker.rpartition(":")
            connection = HTTPConnection(host, int(port), timeout=60, source_address=(source, 0))
            connection.request(
                "GET", path, headers={"authorization": basic(user, f"{user}-secret")}
            )
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            return answer.status, json.loads(body) if path.startswith("/api/") else body

        return await asyncio.to_thread(asked)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with (
        cluster(
            tmp_path, USERS, of_broker={"grpc": "builtin"}, network=Network(site=site)
        ) as nameserver,
        AsyncAdmin(nameserver, **ROOT) as admin,
        AsyncProducer(nameserver, **ROOT) as producer,
    ):
        for topic in ("open", "secret"):
            await admin.create_topic(topic, queues=1)
            await producer.send(Message(topic, b"x"))
        (broker,) = await admin.brokers()
        for group in ("hidden", "reader"):
            await admin.create_group(group)
            unread = {Queue(topic, broker.broker_name, 0): 0 for topic in ("open", "secret")}
            await admin.set_group_offsets(group, unread)
        yield Served(nameserver, broker.address)


async def test_lists_of_the_console_show_what_the_user_may_see(served: Served) -> None:
    status, found = await served.get("/api/topics")
    assert status == 200
    assert [one["name"] for one in found["topics"]] == ["open"]
    assert found["left_out"] == 1

    status, found = await served.get("/api/groups")
    assert status == 200
    assert [(one["name"], one["lag"]) for one in found["groups"]] == [("reader", 1)]
    assert found["left_out"] == 1

    status, found = await served.get("/api/topics/open")
    assert (status, found["groups"]) == (200, [{"group": "reader", "lag": 1}])

    status, found = await served.get("/api/groups/reader")
    assert (status, {one["topic"] for one in found["lags"]}) == (200, {"open"})
    assert (await served.get("/api/dead-letters"))[0] == 200
    for hidden in ("topics/secret", "groups/hidden"):
        assert (await served.get(f"/api/{hidden}"))[0] == 403


async def test_worst_lags_of_one_user_are_not_shown_to_another(served: Served) -> None:
    status, found = await served.get("/api/overview", user="root")
    assert status == 200
    assert {(one["group"], one["topic"]) for one in found["lags"]} == {
        (group, topic) for group in ("hidden", "reader") for topic in ("open", "secret")
    }

    status, found = await served.get("/api/overview")

    assert status == 200
    assert {(one["group"], one["topic"]) for one in found["lags"]} == {("reader", "open")}


async def test_worst_lags_for_one_address_are_not_shown_at_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_REST", 1_000_000)  # What was found is kept for as long as the test.
    seen = []
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
        status, found = await served.get("/api/overview", user="sam", source=source)
        assert status == 200
        seen.append({one["topic"] for one in found["lags"]})

    assert seen == [{"open", "secret"}, {"open"}, {"open", "secret"}]


@pytest.mark.parametrize(
    "page", ["/", "/topics", "/groups", "/dead-letters", "/topics/open", "/groups/reader"]
)
async def test_pages_are_shown_without_what_is_denied(page: str, served: Served) -> None:
    status, html = await served.get(page)

    assert status == 200
    assert "secret" not in html
    assert "hidden</a>" not in html
    if page in ("/topics", "/groups"):
        assert "1 left out: you may not see them" in html


@pytest.mark.parametrize(
    "verb",
    ["lag", "lint", "top --once --interval 100ms", "topic list", "group list", "health", "group describe reader"],
)  # fmt: skip
async def test_verbs_show_what_the_user_may_see(
    verb: str, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "eve")
    monkeypatch.setenv("POCKETMQ_SECRET", "eve-secret")

    arguments = [*verb.split(), "--nameserver", served.nameserver]
    code = await asyncio.to_thread(run, arguments)

    said = capsys.readouterr()
    assert code in (0, 1), said.err
    assert said.out
    if verb.split()[0] in ("lag", "lint", "top") or verb.endswith("list"):
        kinds = "1 topic and 1 group"
        if verb.endswith("list"):
            kinds = f"1 {verb.split()[0]}"
        assert f"left out {kinds} that this user may not see" in said.err
        assert "secret" not in said.out + said.err
        assert "hidden" not in said.out + said.err
    elif verb == "group describe reader":
        assert "left out 1 topic that this user may not see" in said.err
        assert "secret" not in said.out


async def test_topics_are_listed_for_a_user_who_may_see_no_group(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "tom")
    monkeypatch.setenv("POCKETMQ_SECRET", "tom-secret")

    code = await asyncio.to_thread(run, ["topic", "list", "--nameserver", served.nameserver])

    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert "open" in said.out


@pytest.mark.parametrize("verb", ["lag", "lint", "top --once --interval 100ms"])
async def test_what_the_user_may_list_and_not_look_at_is_counted(
    verb: str, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "lea")
    monkeypatch.setenv("POCKETMQ_SECRET", "lea-secret")

    arguments = [*verb.split(), "--nameserver", served.nameserver]
    code = await asyncio.to_thread(run, arguments)

    said = capsys.readouterr()
    assert code in (0, 1), said.err
    assert said.err.count("left out 1 topic and 1 group that this user may not see") == 1


async def offsets_of_reader(peer: Peer, *topics: str) -> pb.GroupOffsetsReply:
    queues = [pb.QueueId(topic=topic, queue=0) for topic in topics]
    request = pb.GroupOffsetsRequest(group="reader", queues=queues, with_times=True)
    reply: pb.GroupOffsetsReply = await peer.ask("GroupOffsets", request, pb.GroupOffsetsReply)
    return reply


async def test_offsets_of_a_group_in_hidden_topics_are_left_out_and_counted(served: Served) -> None:
    async with served.peer("root") as root, served.peer() as eve:
        every, seen = await offsets_of_reader(root), await offsets_of_reader(eve)

    assert {one.topic for one in every.offsets} == {"open", "secret"}
    assert every.hidden_topics == 0
    assert [one.topic for one in seen.offsets] == ["open"]
    assert seen.hidden_topics == 1


async def test_offsets_of_a_group_in_a_hidden_topic_that_is_named_are_refused(
    served: Served,
) -> None:
    async with served.peer() as eve:
        assert len((await offsets_of_reader(eve, "open")).offsets) == 1
        with pytest.raises(NotAuthorized, match="to access Topic:secret"):
            await offsets_of_reader(eve, "open", "secret")


async def test_the_report_on_a_group_counts_hidden_topics(served: Served) -> None:
    async with AsyncAdmin(served.nameserver, **EVE) as admin:
        report = await admin.describe_group("reader")

    assert {one.queue.topic for one in report.queues} == {"open"}
    assert report.hidden_topics == 1


async def state_of_reader(peer: Peer) -> pb.GroupStateReply:
    request = pb.GroupStateRequest(group="reader")
    reply: pb.GroupStateReply = await peer.ask("GroupState", request, pb.GroupStateReply)
    return reply


def topics_in(reply: pb.GroupStateReply) -> dict[str, set[str]]:
    """Return by place in REPLY the topics that are named there."""
    members = [*reply.members, *reply.official]
    return {
        "leases": {one.topic for one in reply.leases},
        "filtered": {one.topic for one in reply.filtered},
        "shares": {one.topic for share in reply.shares for one in share.queues},
        "held": {one.topic for each in members for one in each.held},
        "subscriptions": {one.topic for each in members for one in each.subscriptions},
    }


async def test_the_state_of_a_group_leaves_out_hidden_topics_and_counts_them(
    served: Served,
) -> None:
    queues = [pb.HeldQueue(topic=topic, broker_name="broker-a") for topic in ("open", "secret")]
    join = join_of(
        "m",
        group="reader",
        subscriptions=[pb.Subscription(topic=topic) for topic in ("never", "open", "secret")],
        held=queues,
    )
    async with served.peer("root") as root, served.peer() as eve, member(root, join) as one:
        generation = (await one.members()).generation
        share = pb.Share(member_id="m", queues=queues)
        await one.say(plan=pb.Plan(generation=generation, shares=[share]))
        assert (await one.hear()).HasField("assigned")
        leases = [pb.QueueLease(topic=topic, queue=0) for topic in ("open", "secret")]
        request = pb.LeaseRequest(group="reader", member_id="m", queues=leases)
        await root.ask("LeaseQueues", request, pb.LeaseReply)

        every, seen = await state_of_reader(root), await state_of_reader(eve)
        offsets = await offsets_of_reader(eve)

    both = {"open", "secret"}
    places = topics_in(every).keys()
    assert topics_in(every) == {place: both for place in places} | {
        "subscriptions": {"never", *both}
    }
    assert every.hidden_topics == 0
    assert topics_in(seen) == {place: {"open"} for place in places} | {
        "subscriptions": {"never", "open"}
    }
    assert seen.hidden_topics == 1
    assert len(seen.members) == 1
    assert offsets.hidden_topics == 1


async def test_a_hidden_topic_is_counted_once_a_member_subscribes_to_it(served: Served) -> None:
    """The group has committed nothing in it."""
    async with AsyncAdmin(served.nameserver, **ROOT) as admin:
        await admin.create_group("new")
    join = join_of("m", group="new", subscriptions=[pb.Subscription(topic="secret")])
    async with served.peer("root") as root, served.peer() as eve, member(root, join) as one:
        await one.members()
        request = pb.GroupOffsetsRequest(group="new")
        reply = await eve.ask("GroupOffsets", request, pb.GroupOffsetsReply)

    assert reply.hidden_topics == 1


async def test_official_clients_are_listed_without_what_is_hidden(served: Served) -> None:
    async with served.official_consumer("one", "reader"), served.official_consumer("two", "hidden"):
        async with served.peer("root") as root, served.peer() as eve:
            request, reply = pb.ClientListRequest(), pb.ClientListReply
            every = (await root.ask("ListClients", request, reply)).clients
            seen = (await eve.ask("ListClients", request, reply)).clients
            state = await state_of_reader(eve)
        status, page = await served.get("/api/connections")
        _, html = await served.get("/connections")
        _, group = await served.get("/api/groups/reader")

    def told(client: pb.OfficialClient) -> tuple[Any, ...]:
        return client.client_id, client.group, set(client.topics)

    both = {"open", "secret"}
    assert list(map(told, every)) == [("root/one", "reader", both), ("root/two", "hidden", both)]
    assert list(map(told, seen)) == [("root/one", "reader", {"open"}), ("root/two", "", {"open"})]
    assert [one.hidden_topics for one in every] == [0, 0]
    assert [one.hidden_topics for one in seen] == [1, 1]
    assert [one.hidden_group for one in seen] == [False, True]
    assert topics_in(state)["subscriptions"] == {"open"}

    assert status == 200
    found = page["official_clients"]
    assert [(one["client_id"], one["group"], one["topics"]) for one in found] == [
        ("root/one", "reader", ["open"]),
        ("root/two", None, ["open"]),
    ]
    assert [(one["left_out_topics"], one["left_out_group"]) for one in found] == [
        (1, False),
        (1, True),
    ]
    assert "root/two" in html
    assert ">hidden<" not in html
    assert [one["subscriptions"] for one in group["clients"]] == [["open"]]


async def test_the_life_of_a_message_leaves_out_hidden_groups(served: Served) -> None:
    path = "/api/messages/open%2F0%2F0/life"
    _, every = await served.get(path, user="root")
    status, seen = await served.get(path)
    _, html = await served.get("/messages?topic=open&queue=0&offset=0")

    assert status == 200
    (whole,), (story,) = every["stories"], seen["stories"]
    assert {one["group"] for one in whole["groups"]} == {"hidden", "reader"}
    assert {one["group"] for one in story["groups"]} == {"reader"}
    assert "left_out" not in whole
    assert story["left_out"] == 1
    assert story["notes"][-1].startswith("left out 1 events and groups")
    assert "1 left out: you may not see them" in html
    assert "hidden" not in json.dumps(story)
    assert "<b>reader</b>" in html
    assert "<b>hidden</b>" not in html


async def send_back(served: Served, group: str, topic: str, delay_level: int) -> None:
    """Have GROUP send back the message in TOPIC."""
    async with AsyncAdmin(served.nameserver, **ROOT) as admin, served.peer("root") as root:
        (message,) = await admin.lookup_offset(topic, 0, 0)
        request = pb.SendBackRequest(
            group=group, topic=topic, log_offset=message.log_offset, delay_level=delay_level
        )
        await root.ask("SendBack", request, pb.SendBackReply)


async def test_the_life_of_a_dead_letter_does_not_name_the_hidden_topic_that_it_came_from(
    served: Served,
) -> None:
    await send_back(served, "reader", "secret", delay_level=-1)
    path = "/api/messages/%25DLQ%25reader%2F0%2F0/life"
    _, every = await served.get(path, user="root")
    status, refused = await served.get(path)

    assert [one["topic"] for one in every["stories"]] == ["secret"]
    assert (status, refused["error"]) == (403, "NotAuthorized")
    assert "secret" not in json.dumps(refused)


async def test_topics_of_delayed_messages_leave_out_those_of_hidden_groups(served: Served) -> None:
    async with AsyncAdmin(served.nameserver, **ROOT) as admin:
        for group in ("hidden", "reader"):
            await admin.update_group(group, retry_intervals_ms=[3_600_001])
            await send_back(served, group, "open", delay_level=0)
    every: dict[str, Any] = {"to_an_instant": 0}
    async with asyncio.timeout(60):
        while every["to_an_instant"] < 2:  # The broker has taken them from the timer topic.
            await asyncio.sleep(0.05)
            _, every = await served.get("/api/delayed", user="root")
    status, seen = await served.get("/api/delayed", user="gus")
    _, html = await served.get("/delayed", user="gus")

    assert {one["topic"] for one in every["topics"]} == {"%RETRY%hidden", "%RETRY%reader"}
    assert every["left_out"] == 0
    assert status == 200
    assert [one["topic"] for one in seen["topics"]] == ["%RETRY%reader"]
    assert seen["left_out"] == 1
    assert "hidden</a>" not in html
    assert "1 left out: you may not see them" in html


async def test_a_refusal_does_not_quote_the_policy_that_names_a_hidden_topic(
    served: Served,
) -> None:
    request = pb.LookupRequest(message_id="0" * 32)
    async with served.peer() as eve:
        with pytest.raises(NotAuthorized) as refused:
            await eve.ask("Lookup", request, pb.LookupReply)

    assert refused.value.details["resource"] == "Topic:*"
    assert "secret" not in refused.value.message + str(refused.value.details)


async def test_what_recovery_found_is_told_without_paths(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = {"kind": "rebuilt", "path": "consumequeue/secret/0", "why": "secret", "records": 1}
    monkeypatch.setattr(RecoveryReport, "to_json", lambda _: {"findings": [finding]})
    request = pb.BrokerStatusRequest()
    async with served.peer("root") as root, served.peer() as eve:
        every = await root.ask("Status", request, pb.BrokerStatusReply)
        seen = await eve.ask("Status", request, pb.BrokerStatusReply)
    _, store = await served.get("/api/store")

    assert json.loads(every.recovery)["findings"] == [finding]
    shown = finding | {"path": "", "why": ""}
    assert json.loads(seen.recovery)["findings"] == store["recovery"]["findings"] == [shown]


async def test_the_failure_of_a_store_is_told_without_the_topic(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with cluster(tmp_path, USERS, of_broker={"grpc": "builtin"}, disk=disk) as nameserver:
        await look_at_failed_store(nameserver, disk)


async def send_until_refused(producer: AsyncProducer) -> None:
    """Send to secret: the first messages may be stored before their queue's file is written."""
    for _ in range(100):
        await producer.send(Message("secret", b"x"))


async def look_at_failed_store(nameserver: str, disk: FaultyDisk) -> None:
    request = pb.BrokerStatusRequest()
    async with (
        AsyncAdmin(nameserver, **ROOT) as admin,
        AsyncProducer(nameserver, retries=0, **ROOT) as producer,
    ):
        await admin.create_topic("secret", queues=1)
        served = Served(nameserver, (await admin.brokers())[0].address)
        disk.break_writes("consumequeue/secret")
        async with served.peer("root") as root, served.peer() as eve:
            with pytest.raises(PocketMQError) as refused:
                await send_until_refused(producer)
            every = await root.ask("Status", request, pb.BrokerStatusReply)
            seen = await eve.ask("Status", request, pb.BrokerStatusReply)

    assert "consumequeue/secret/0" in every.not_writable_because
    assert "input/output error" in seen.not_writable_because
    for told in (seen.not_writable_because, refused.value.message, str(refused.value.details)):
        assert "secret" not in told


@pytest.mark.processes
async def test_the_doctor_who_names_any_topic_needs_all_of_them(served: Served) -> None:
    status, refused = await served.post("/api/store/doctor")

    assert (status, refused["error"]) == (403, "NotAuthorized")
    assert (await served.post("/api/store/doctor", user="root"))[0] == 200


async def test_reading_without_a_group_needs_no_right_on_a_group(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "amy")
    monkeypatch.setenv("POCKETMQ_SECRET", "amy-secret")
    monkeypatch.setenv("POCKETMQ_NAMESERVER", served.nameserver)
    monkeypatch.setattr(consume, "_interrupts_held", nullcontext)  # For the main thread only.
    file = tmp_path / "lines"

    assert await asyncio.to_thread(run, ["record", "open", str(file)]) == 0
    assert json.loads(file.read_text())["body"] == "x"
    capsys.readouterr()
    command = ["consume", "open", "--limit", "1", "--timeout", "60"]
    assert await asyncio.to_thread(run, command) == 0
    assert capsys.readouterr().out == "x\n"
    assert await asyncio.to_thread(run, [*command, "--group", "reader"]) == 1
    assert "Group:reader" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["trace 00FF", "find --topic secret --key k"])
async def test_a_look_up_that_is_refused_for_lack_of_rights_has_exit_code_1(
    command: str,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POCKETMQ_USER", "amy")
    monkeypatch.setenv("POCKETMQ_SECRET", "amy-secret")
    monkeypatch.setenv("POCKETMQ_NAMESERVER", served.nameserver)

    assert await asyncio.to_thread(run, command.split()) == 1
    assert "amy" in capsys.readouterr().err
