"""Official clients of one group want the same of a topic: who does not is refused, unless the group only warns."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.broker.consumer_groups import GRACE, REFUSE, SUBSCRIPTION_CHECK, WARN, Groups
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2

from ..pop.popping import GROUP, TOPIC
from .connected import Connected
from .consuming import Consuming, resource, status_of_stream


def tag(expression: str) -> v2.FilterExpression:
    return v2.FilterExpression(type=v2.TAG, expression=expression)


def sql(expression: str) -> v2.FilterExpression:
    return v2.FilterExpression(type=v2.SQL, expression=expression)


def wanting(group: str = "R-g", **topics: v2.FilterExpression) -> v2.Settings:
    """Return the settings of a push consumer of GROUP that wants of TOPICS (normal: R-normal) what is said."""
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.name = group
    for name, expression in topics.items():
        settings.subscription.subscriptions.add(topic=resource(f"R-{name}"), expression=expression)
    return settings


def set_check(groups: Groups, name: str, check: str) -> None:
    group = groups.ensure(name)
    groups.create(replace(group, attributes={SUBSCRIPTION_CHECK: check}), update=True)


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    """Return clients of a broker whose group R-g refuses a second filter at once."""
    made = Connected(tmp_path)
    set_check(made.groups, "R-g", REFUSE)
    return made


class TestSettings:
    """What is said on a Telemetry stream."""

    def test_a_second_filter_is_refused_and_names_both_and_the_difference(
        self, connected: Connected
    ) -> None:
        connected.open("old").say(wanting(normal=tag("a || b")))

        with pytest.raises(InvalidArgument) as caught:
            connected.open("new").say(wanting(normal=tag("a || c")))

        assert caught.value.message == (
            "client 'new' and client 'old' of group 'R-g' have different subscriptions: topic 'R-normal':"
            " tags 'a || c' here, tags 'a || b' there: use the same subscription, or a group of its own"
        )
        session = connected.sessions.find("new")
        assert session is not None
        assert session.settings is None

    def test_the_reason_is_sent_as_a_status_before_the_stream_ends(
        self, connected: Connected
    ) -> None:
        connected.open("old").say(wanting(normal=tag("a")))
        peer = connected.open("new")

        with pytest.raises(InvalidArgument) as caught:
            peer.say(wanting(normal=tag("b")))

        (told,) = peer.stream.sent
        assert told.WhichOneof("command") is None
        assert told.status.code == v2.FORBIDDEN
        assert caught.value.message in told.status.message

    def test_a_push_consumer_with_a_malformed_filter_is_refused_when_it_starts(
        self, connected: Connected
    ) -> None:
        peer = connected.open("c1")

        with pytest.raises(InvalidArgument, match=r"(?s)R-normal.*price >"):
            peer.say(wanting(normal=sql("price >")))

        (told,) = peer.stream.sent
        assert told.status.code == v2.ILLEGAL_FILTER_EXPRESSION

    def test_a_malformed_filter_in_later_settings_ends_no_stream(
        self, connected: Connected
    ) -> None:
        peer = connected.open("c1")
        peer.say(wanting(normal=tag("a")))

        peer.say(wanting(normal=tag("a"), fifo=sql("price >")))

    def test_a_simple_consumer_with_a_malformed_filter_is_refused_when_it_receives(
        self, connected: Connected
    ) -> None:
        settings = wanting(normal=sql("price >"))
        settings.client_type = v2.SIMPLE_CONSUMER

        connected.open("c1").say(settings)

    def test_settings_of_a_simple_consumer_are_answered_and_its_receives_are_refused(
        self, connected: Connected
    ) -> None:
        connected.open("old").say(wanting(normal=tag("a")))
        settings = wanting(normal=tag("b"))
        settings.client_type = v2.SIMPLE_CONSUMER

        connected.open("new").say(settings)

        wanted = pb.Filter(kind=pb.Filter.TAG, expression="b")
        with pytest.raises(InvalidArgument, match="use the same subscription"):
            connected.clients.subscriptions.receive("new", "R-g", "R-normal", wanted)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (tag("a||b"), tag(" b || a || a")),
            (tag("*"), tag("")),
            (sql("n > 1 and m = 'x'"), sql("( n>1 ) AND m='x'")),
        ],
    )
    def test_other_words_for_the_same_are_the_same(
        self, connected: Connected, one: v2.FilterExpression, other: v2.FilterExpression
    ) -> None:
        connected.open("c1").say(wanting(normal=one))
        connected.open("c2").say(wanting(normal=other))

    def test_topics_may_differ_and_so_may_groups(self, connected: Connected) -> None:
        connected.open("c1").say(wanting(normal=tag("a")))
        connected.open("c2").say(wanting(fifo=tag("b")))
        connected.open("c3").say(wanting("R-g2", normal=tag("b")))

    def test_who_said_goodbye_is_in_nobodys_way(self, connected: Connected) -> None:
        connected.open("old").say(wanting(normal=tag("a")))

        connected.sessions.end("old")

        connected.open("new").say(wanting(normal=tag("b")))

    async def test_who_was_killed_is_in_the_way_until_it_counts_as_gone(
        self, connected: Connected
    ) -> None:
        connected.timers.start()
        peer = connected.open("old", **{"x-mq-language": "JAVA"})
        peer.say(wanting(normal=tag("a")))
        peer.close()

        with pytest.raises(InvalidArgument, match=r"not connected.* try again in 15000 ms"):
            connected.open("new").say(wanting(normal=tag("b")))
        await connected.clock.advance(17_000)

        connected.open("new").say(wanting(normal=tag("b")))
        await connected.timers.stop()

    def test_a_client_alone_changes_its_filter(self, connected: Connected) -> None:
        peer = connected.open("c")
        peer.say(wanting(normal=tag("a")))
        peer.say(wanting(normal=tag("b")))

        with pytest.raises(InvalidArgument, match="tags 'a' here, tags 'b' there"):
            connected.open("d").say(wanting(normal=tag("a")))

    def test_a_topic_that_is_not_subscribed_to_any_more_is_free(self, connected: Connected) -> None:
        peer = connected.open("c")
        peer.say(wanting(normal=tag("a"), fifo=tag("a")))
        peer.say(wanting(fifo=tag("a")))

        connected.open("d").say(wanting(normal=tag("b")))

    def test_a_group_that_warns_lets_both_in_and_logs_it_once(
        self, connected: Connected, caplog: pytest.LogCaptureFixture
    ) -> None:
        set_check(connected.groups, "R-g", WARN)
        connected.open("c").say(wanting(normal=tag("a")))
        peer = connected.open("d")

        with caplog.at_level(logging.WARNING):
            peer.say(wanting(normal=tag("b")))
            peer.say(wanting(normal=tag("b")))

        (warning,) = [one.getMessage() for one in caplog.records]
        assert "client 'd' and client 'c' of group 'R-g' have different subscriptions" in warning

    def test_the_first_stays_when_a_group_begins_to_refuse(self, connected: Connected) -> None:
        set_check(connected.groups, "R-g", WARN)
        first, second = connected.open("c"), connected.open("d")
        first.say(wanting(normal=tag("a")))
        second.say(wanting(normal=tag("b")))

        set_check(connected.groups, "R-g", REFUSE)

        first.say(wanting(normal=tag("a")))
        with pytest.raises(InvalidArgument, match="client 'd'"):
            second.say(wanting(normal=tag("b")))


GRACE_MS = 600_000


class TestGrace:
    """A filter that changes during a rolling deployment."""

    @pytest.fixture
    def connected(self, tmp_path: Path) -> Connected:
        return Connected(tmp_path)

    async def test_both_filters_are_served_and_then_the_newer_one(
        self, connected: Connected, caplog: pytest.LogCaptureFixture
    ) -> None:
        old, new = connected.open("old"), connected.open("new")
        old.say(wanting(normal=tag("a")))
        with caplog.at_level(logging.WARNING):
            new.say(wanting(normal=tag("b")))
        assert "both are served for 10m, then only the newer one" in caplog.text
        await connected.clock.advance(GRACE_MS - 1)
        assert connected.clients.subscriptions.grace_left_ms("R-g") == 1
        for _ in range(2):
            old.say(wanting(normal=tag("a")))
            new.say(wanting(normal=tag("b")))

        await connected.clock.advance(1)

        new.say(wanting(normal=tag("b")))
        with pytest.raises(InvalidArgument, match="the newer subscription is served"):
            old.say(wanting(normal=tag("a")))
        connected.open("third").say(wanting(normal=tag("b")))

    async def test_an_old_client_that_starts_again_does_not_become_the_newer_one(
        self, connected: Connected
    ) -> None:
        connected.open("old").say(wanting(normal=tag("a")))
        connected.open("new").say(wanting(normal=tag("b")))
        await connected.clock.advance(GRACE_MS)
        connected.sessions.end("old")

        for number in range(5):
            with pytest.raises(InvalidArgument, match="the newer subscription is served"):
                connected.open(f"old-{number}").say(wanting(normal=tag("a")))
            await connected.clock.advance(GRACE_MS - 1)

    async def test_going_back_is_a_deployment_of_its_own(self, connected: Connected) -> None:
        connected.open("old").say(wanting(normal=tag("a")))
        new = connected.open("new")
        new.say(wanting(normal=tag("b")))
        connected.sessions.end("old")

        connected.open("again").say(wanting(normal=tag("a")))
        await connected.clock.advance(GRACE_MS)

        with pytest.raises(InvalidArgument, match="client 'new'"):
            new.say(wanting(normal=tag("b")))

    async def test_who_is_alone_is_served_whatever_it_wanted(self, connected: Connected) -> None:
        old = connected.open("old")
        old.say(wanting(normal=tag("a")))
        connected.open("new").say(wanting(normal=tag("b")))
        await connected.clock.advance(GRACE_MS)
        with pytest.raises(InvalidArgument):
            old.say(wanting(normal=tag("a")))

        connected.sessions.end("new")

        connected.open("other").say(wanting(normal=tag("a")))

    async def test_a_group_may_refuse_at_once(self, connected: Connected) -> None:
        connected.open("old").say(wanting(normal=tag("a")))
        connected.open("new").say(wanting(normal=tag("b")))

        set_check(connected.groups, "R-g", REFUSE)

        with pytest.raises(InvalidArgument, match=r"client 'new'.*use the same subscription"):
            connected.open("new").say(wanting(normal=tag("b")))
        set_check(connected.groups, "R-g", GRACE)
        connected.open("new").say(wanting(normal=tag("b")))


def receive(consuming: Consuming, client: str, expression: str) -> v2.Status:
    stream = consuming.receive(
        metadata={"x-mq-client-id": client, "x-mq-client-version": "5.1.2"},
        filter_expression=tag(expression),
        batch_size=1,
    )
    return status_of_stream(stream)


class TestReceives:
    """What is said with a receive, of clients that have sent no settings, too."""

    async def test_a_receive_through_another_filter_is_refused_and_takes_nothing(
        self, consuming: Consuming
    ) -> None:
        set_check(consuming.groups, GROUP, REFUSE)
        consuming.send(b"1", b"2", properties={"TAGS": "a"})
        assert receive(consuming, "c", "a").code == v2.OK

        refused = receive(consuming, "d", "b")

        assert refused.code == v2.FORBIDDEN
        assert "client 'd' and client" in refused.message
        assert "tags 'b' here, tags 'a' there" in refused.message
        assert receive(consuming, "c", "a").code == v2.OK

    async def test_a_client_without_a_session_is_forgotten_a_minute_after_its_last_receive(
        self, consuming: Consuming
    ) -> None:
        set_check(consuming.groups, GROUP, REFUSE)
        consuming.send(b"1", b"2", properties={"TAGS": "b"})
        consuming.receive(metadata={"x-mq-client-id": "c"}, filter_expression=tag("a"))
        assert receive(consuming, "d", "b").code == v2.FORBIDDEN

        await consuming.passes(60_000)

        consuming.send(b"3", properties={"TAGS": "b"})
        assert receive(consuming, "d", "b").code == v2.OK

    async def test_a_group_that_warns_serves_both(self, consuming: Consuming) -> None:
        set_check(consuming.groups, GROUP, WARN)
        consuming.send(b"1", properties={"TAGS": "a"})
        assert receive(consuming, "c", "a").code == v2.OK
        consuming.send(b"2", properties={"TAGS": "b"})
        assert receive(consuming, "d", "b").code == v2.OK

        (c, d) = consuming.subscriptions.of_group(GROUP)
        assert [c.member_id, d.member_id] == ["c", "d"]
        assert [one.filter.expression for one in (c.subscriptions[0], d.subscriptions[0])] == [
            "a",
            "b",
        ]
        assert c.subscriptions[0].topic == TOPIC

    async def test_in_a_grace_period_both_are_served_and_what_is_skipped_is_counted(
        self, consuming: Consuming
    ) -> None:
        consuming.send(b"1", properties={"TAGS": "a"})
        assert receive(consuming, "old", "a").code == v2.OK
        consuming.send(b"2", properties={"TAGS": "b"})
        assert receive(consuming, "new", "b").code == v2.OK
        consuming.send(b"3", properties={"TAGS": "b"})
        consuming.send(b"4", properties={"TAGS": "a"})
        assert receive(consuming, "old", "a").code == v2.OK
        skipped = [
            (one.expression, one.count)
            for queue in consuming.consume_stats.of_group(GROUP)
            for one in queue.skipped
        ]
        assert skipped == [("a", 1)]

        for _ in range(20):
            await consuming.passes(GRACE_MS // 20)
            consuming.send(b"x", properties={"TAGS": "b"})
            assert receive(consuming, "new", "b").code == v2.OK
            consuming.receive(
                metadata={"x-mq-client-id": "old", "x-mq-client-version": "5.1.2"},
                filter_expression=tag("a"),
            )

        refused = receive(consuming, "old", "a")
        assert refused.code == v2.FORBIDDEN
        assert "the newer subscription is served" in refused.message
        consuming.send(b"5", properties={"TAGS": "b"})
        assert receive(consuming, "new", "b").code == v2.OK
