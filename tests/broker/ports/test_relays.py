"""What a follower carries to its master, over real connections in one process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.broker.ports.relays import EARLY_MAX, KnownMaster, _RelayedStream, _Upstream
from pocketmq.proto.errors import InvalidArgument, ShuttingDown
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import EOF, CallFailed, StatusCode

from ...waiting import until
from .following import Follower, ScriptedMaster, followed, settings

#: Nobody listens there.
NOWHERE = "127.0.0.1:1"


# ---------------------------------------------------------------- one call


async def test_a_call_is_answered_by_the_master() -> None:
    async with followed() as (follower, master):
        metadata = (("x-mq-client-id", "c1"), ("x-mq-language", "JAVA"))

        reply = await follower.heartbeat(timeout=30.0, metadata=metadata)

        assert reply.status.message == "m1"
        assert master.heartbeats[0].group.name == "g"
        assert master.metadata[0]["x-mq-client-id"] == "c1"
        assert master.metadata[0]["x-mq-language"] == "JAVA"
        assert 10_000 < master.deadlines_ms[0] <= 30_000


async def test_what_follows_the_answer_is_passed_on() -> None:
    async with followed() as (follower, master):
        master.bodies = [b"a"]
        call = await follower.receive()

        assert [one.message.body async for one in call] == [b"a"]
        assert ("pocketmq-said-by", "m1") in await call.trailing_metadata()


async def test_the_master_s_error_is_the_caller_s() -> None:
    async with followed() as (follower, master):
        master.error = InvalidArgument("no such group", field="group")

        with pytest.raises(CallFailed) as refused:
            await follower.heartbeat()

        error = from_rpc_error(refused.value)
        assert isinstance(error, InvalidArgument)
        assert (error.message, error.details) == ("no such group", {"field": "group"})


async def test_a_caller_that_goes_is_known_to_the_master() -> None:
    async with followed() as (follower, master):
        master.gate = asyncio.Event().wait
        asked = asyncio.ensure_future(follower.heartbeat())
        receiving = await follower.receive()
        await until(lambda: len(master.metadata) == 2)

        asked.cancel()
        receiving.cancel()

        await until(lambda: master.cancelled == 2)


async def test_the_caller_s_deadline_ends_the_call_at_the_master() -> None:
    async with followed() as (follower, master):
        master.gate = asyncio.Event().wait

        with pytest.raises(CallFailed) as late:
            await follower.heartbeat(timeout=0.3)

        assert late.value.code() is StatusCode.DEADLINE_EXCEEDED
        await until(lambda: master.cancelled == 1)


@pytest.mark.slow
async def test_who_does_not_read_holds_the_master_back() -> None:
    async with followed() as (follower, master):
        master.bodies = [bytes(1024 * 1024)] * 100
        call = await follower.receive()
        await until(lambda: master.sent > 0)
        sent = -1
        while sent != master.sent:
            sent = master.sent
            await asyncio.sleep(0.2)

        assert sent < 60
        assert sum([1 async for _ in call]) == 100


async def test_more_calls_than_the_bound_are_refused() -> None:
    async with followed(relays_max=2) as (follower, master):
        master.gate = asyncio.Event().wait
        waiting = [asyncio.ensure_future(follower.heartbeat()) for _ in range(2)]
        await until(lambda: len(master.heartbeats) == 2)

        with pytest.raises(CallFailed, match="relayed to the master, the limit") as refused:
            await follower.heartbeat()
        assert refused.value.code() is StatusCode.RESOURCE_EXHAUSTED

        for one in waiting:
            one.cancel()
        await until(lambda: master.cancelled == 2)
        master.gate = None
        assert (await follower.heartbeat()).status.message == "m1"


# ---------------------------------------------------------------- another master


async def test_a_call_waits_for_the_master_that_is_being_elected() -> None:
    async with followed() as (follower, master):
        follower.master = None
        asked = asyncio.ensure_future(follower.heartbeat(timeout=30.0))
        await asyncio.sleep(0.1)
        assert not asked.done()

        follower.follow(master, epoch=2)

        assert (await asked).status.message == "m1"


async def test_a_call_that_reached_nobody_goes_to_the_next_master() -> None:
    async with followed() as (follower, master):
        follower.master = KnownMaster(NOWHERE, 1)
        asked = asyncio.ensure_future(follower.heartbeat(timeout=30.0))
        await asyncio.sleep(0.1)

        follower.follow(master, epoch=2)

        assert (await asked).status.message == "m1"


@pytest.mark.parametrize("known", [None, KnownMaster(NOWHERE, 1)], ids=["none", "lost"])
async def test_nobody_waits_for_a_master_for_ever(known: KnownMaster | None) -> None:
    async with followed(wait_s=0.2) as (follower, _):
        follower.master = known

        with pytest.raises(CallFailed, match="master of orders cannot be reached") as failed:
            await follower.heartbeat()
        assert failed.value.code() is StatusCode.UNAVAILABLE

        with pytest.raises(CallFailed) as failed:
            await (await follower.receive()).read()
        assert failed.value.code() is StatusCode.UNAVAILABLE


async def test_what_was_under_way_at_a_master_that_is_killed_is_unavailable() -> None:
    async with followed(2) as (follower, master, second):
        master.gate = asyncio.Event().wait
        asked = asyncio.ensure_future(follower.heartbeat())
        await until(lambda: master.heartbeats)
        await master.kill()

        with pytest.raises(CallFailed) as failed:
            await asked
        assert failed.value.code() is StatusCode.UNAVAILABLE
        assert second.heartbeats == []


@pytest.mark.slow
async def test_what_is_under_way_at_a_master_that_hangs_ends_when_another_is_known() -> None:
    async with followed(2) as (follower, master, second):
        master.gate = asyncio.Event().wait
        asked = asyncio.ensure_future(follower.heartbeat())
        receiving = await follower.receive()
        await until(lambda: len(master.metadata) == 2)

        follower.follow(second, epoch=2)

        for waiting in (asked, receiving.read()):
            with pytest.raises(CallFailed, match="epoch 1") as failed:
                await waiting
            assert failed.value.code() is StatusCode.UNAVAILABLE
        assert (await follower.heartbeat()).status.message == "m2"
        assert len(master.heartbeats) == 1


async def test_an_answer_that_comes_in_time_is_passed_on_after_the_election() -> None:
    async with followed(2) as (follower, master, second):
        answers = asyncio.Event()
        master.gate = answers.wait
        asked = asyncio.ensure_future(follower.heartbeat())
        await until(lambda: master.heartbeats)
        follower.follow(second, epoch=2)
        follower.relays.look()

        answers.set()

        assert (await asked).status.message == "m1"


async def test_replicas_that_take_each_other_for_the_master_relay_no_call_twice() -> None:
    async with followed() as (first, master), followed() as (second, _):
        first.follow(second)
        second.follow(first)
        asked = asyncio.ensure_future(first.heartbeat(timeout=30.0))
        await asyncio.sleep(0.3)
        assert not asked.done()
        assert master.heartbeats == []

        first.follow(master, epoch=2)

        assert (await asked).status.message == "m1"
        assert len(master.heartbeats) == 1


# ---------------------------------------------------------------- telemetry


async def test_a_stream_is_carried_both_ways() -> None:
    async with followed() as (follower, master):
        call = await follower.telemetry("c7")

        assert (await call.read()).status.message == "m1"
        await call.write(v2.TelemetryCommand(thread_stack_trace=v2.ThreadStackTrace(nonce="n")))
        await until(lambda: len(master.telemetry[0].taken) == 2)
        master.telemetry[0].say("more")
        assert (await call.read()).status.message == "more"

        await call.done_writing()
        assert await call.read() is EOF
        await until(lambda: master.telemetry[0].is_over)


async def test_what_a_stream_says_before_a_master_is_known_comes_to_it_in_its_order() -> None:
    async with followed(2) as (follower, master, second):
        follower.master = None
        call = await follower.telemetry("c7")
        nonces = [f"n{number}" for number in range(2 * EARLY_MAX)]

        async def say() -> None:
            for nonce in nonces:
                trace = v2.ThreadStackTrace(nonce=nonce)
                await call.write(v2.TelemetryCommand(thread_stack_trace=trace))
            await call.done_writing()

        saying = asyncio.ensure_future(say())
        await asyncio.sleep(0.1)
        follower.follow(master)
        await saying

        await until(lambda: bool(master.telemetry) and master.telemetry[0].is_over)
        taken = master.telemetry[0].taken
        assert taken[0].HasField("settings")
        assert [one.thread_stack_trace.nonce for one in taken[1:]] == nonces
        assert second.telemetry == []


async def test_a_stream_that_the_client_breaks_off_ends_at_the_master() -> None:
    async with followed() as (follower, master):
        call = await follower.telemetry()
        await call.read()

        call.cancel()

        await until(lambda: master.telemetry[0].is_over)
        assert master.telemetry[0].stream.cancelled


async def changed_after_kill(
    follower: Follower, master: ScriptedMaster, second: ScriptedMaster
) -> None:
    await master.kill()
    follower.follow(second, epoch=2)


async def changed_while_it_hangs(
    follower: Follower, master: ScriptedMaster, second: ScriptedMaster
) -> None:
    follower.follow(second, epoch=2)


async def changed_by_a_stop(
    follower: Follower, master: ScriptedMaster, second: ScriptedMaster
) -> None:
    master.telemetry[0].stream.fail(ShuttingDown("a planned hand-over"))
    follower.master = None
    await asyncio.sleep(0.1)
    follower.follow(second, epoch=2)


@pytest.mark.slow
@pytest.mark.parametrize("change", [changed_after_kill, changed_while_it_hangs, changed_by_a_stop])
async def test_a_stream_begins_at_the_next_master_with_the_latest_settings(change: Any) -> None:
    async with followed(2) as (follower, master, second):
        call = await follower.telemetry("c7")
        await call.read()
        await call.write(settings(2))
        await call.read()

        await change(follower, master, second)

        assert (await call.read()).status.message == "m2"
        assert [one.settings.publishing.max_body_size for one in second.telemetry[0].taken] == [2]
        assert second.telemetry[0].stream.metadata["x-mq-client-id"] == "c7"
        await call.write(settings(3))
        assert (await call.read()).status.message == "m2"


async def test_settings_of_between_two_masters_are_those_that_the_next_one_gets() -> None:
    async with followed(2) as (follower, master, second):
        call = await follower.telemetry()
        await call.read()
        follower.master = None
        await master.kill()
        await asyncio.sleep(0.1)

        await call.write(settings(5))
        await asyncio.sleep(0.1)
        follower.follow(second, epoch=2)

        assert (await call.read()).status.message == "m2"
        assert second.telemetry[0].taken[0].settings.publishing.max_body_size == 5


async def test_settings_that_come_while_the_next_master_is_told_of_older_ones_follow_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    streams: list[_RelayedStream] = []
    write, on_message = _Upstream.write, _RelayedStream.on_message

    def note(stream: _RelayedStream, message: Any) -> Any:
        heard.append(message)
        streams.append(stream)
        return on_message(stream, message)

    monkeypatch.setattr(_RelayedStream, "on_message", note)
    async with followed(2) as (follower, master, second):
        call = await follower.telemetry()
        await call.read()
        follower.master = None
        await master.kill()
        await until(lambda: streams[0]._upstream is None)
        heard.clear()

        async def write_slowly(upstream: _Upstream, message: Any) -> None:
            if len(heard) == 1:
                await call.write(settings(6))
                await until(lambda: len(heard) == 2)
            await write(upstream, message)

        monkeypatch.setattr(_Upstream, "write", write_slowly)
        await call.write(settings(5))
        await until(lambda: heard)
        follower.follow(second, epoch=2)
        await until(lambda: second.telemetry and len(second.telemetry[0].taken) == 2)

        sizes = [one.settings.publishing.max_body_size for one in second.telemetry[0].taken]
        assert sizes == [5, 6]


async def test_settings_that_the_master_refuses_end_the_stream() -> None:
    async with followed() as (follower, master):
        master.error = InvalidArgument("bad settings")
        call = await follower.telemetry()

        with pytest.raises(CallFailed, match="bad settings") as failed:
            await call.read()
        assert failed.value.code() is StatusCode.INVALID_ARGUMENT


async def test_the_end_of_the_relays_ends_what_they_carry() -> None:
    async with followed() as (follower, master):
        master.gate = asyncio.Event().wait
        call = await follower.telemetry()
        await call.read()
        asked = asyncio.ensure_future(follower.heartbeat())
        await until(lambda: master.heartbeats)

        await follower.relays.close()

        for waiting in (call.read(), asked):
            with pytest.raises(CallFailed) as failed:
                await waiting
            assert failed.value.code() is StatusCode.UNAVAILABLE
        await until(lambda: master.telemetry[0].is_over)


async def test_a_connection_to_a_former_master_is_closed() -> None:
    dialled: dict[str, list[Http2Channel]] = {}
    closed: list[str] = []

    class Counted(Http2Channel):
        def __init__(self, address: str) -> None:
            super().__init__(address)
            dialled.setdefault(address, []).append(self)

        async def close(self, grace: float | None = None) -> None:
            closed.append(self.address)
            await super().close(grace)

    async with followed(2) as (follower, master, second):
        follower.relays._dial = Counted
        await follower.heartbeat()
        await follower.heartbeat()
        follower.follow(second, epoch=2)
        await follower.heartbeat()

        await until(lambda: closed == [master.address])
        assert {address: len(found) for address, found in dialled.items()} == {
            master.address: 1,
            second.address: 1,
        }
