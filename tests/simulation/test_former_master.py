"""A master whose session was ended, and which does not know it yet, does not say that something is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pocketmq.proto.errors import (
    MasterFenced,
    OffsetOutOfRange,
    PocketMQError,
    TopicNotFound,
    UnknownProducer,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..numbered import bodies, numbered_run
from .broker_campaign import NO_ANSWER, Client
from .replica_brokers import World, simulated_threads
from .virtual_loop import loop_clock, run

TOPIC = "T"
Ask = Callable[[Client], Awaitable[Any]]


async def goes_on(client: Client) -> Any:
    """Send the second run of a producer, whose first one only another master has."""
    return await client.exchange(
        "Produce", numbered_run(bodies(3, 1), 3, topic=TOPIC), pb.ProduceReply
    )


async def reads_on(client: Client) -> Any:
    request = pb.FetchRequest(topic=TOPIC, queue=0, offset=3, max_wait_ms=1)
    return await client.exchange("Fetch", request, pb.FetchReply)


async def looks_at_a_topic(client: Client) -> Any:
    return await client.ask(
        "DescribeTopic", pb.DescribeTopicRequest(topic="new"), pb.DescribeTopicReply
    )


async def deletes_a_topic(client: Client) -> Any:
    return await client.ask("DeleteTopic", pb.DeleteTopicRequest(topic="new"), pb.DeleteTopicReply)


#: What is asked, and what a master says that has nothing of it.
ASKED: list[tuple[Ask, type[PocketMQError]]] = [
    (goes_on, UnknownProducer),
    (reads_on, OffsetOutOfRange),
    (looks_at_a_topic, TopicNotFound),
    (deletes_a_topic, TopicNotFound),
]


async def answer_of(folder: Path, ask: Ask, *, is_over: bool, seed: int = 1) -> PocketMQError:
    """Return what the master of three replicas answers to ASK. IS_OVER: the registry has just ended its session."""
    with simulated_threads(Random(seed)):
        world = World(seed, folder, loop_clock())
        await world.start()
        master = await world.come_to_rest()
        client = Client(world, "c")
        while client.asked is not master:
            await client.turn()
        topic = pb.TopicConfig(name=TOPIC, read_queues=1, write_queues=1, permission=6)
        await client.ask("CreateTopic", pb.CreateTopicRequest(topic=topic), pb.TopicReply)
        if is_over:
            world.ensemble.expire(world.ensemble.session_of(master.id))
        with pytest.raises(PocketMQError) as caught:
            await ask(client)
        await world.stop()
    return caught.value


@pytest.mark.parametrize(("ask", "missing"), ASKED)
def test_a_master_says_that_something_is_missing(
    tmp_path: Path, ask: Ask, missing: type[PocketMQError]
) -> None:
    assert type(run(answer_of(tmp_path, ask, is_over=False))) is missing


@pytest.mark.parametrize("ask", [ask for ask, _ in ASKED])
def test_a_master_whose_session_was_ended_does_not(tmp_path: Path, ask: Ask) -> None:
    answers = [
        run(answer_of(tmp_path / f"{seed}", ask, is_over=True, seed=seed)) for seed in range(1, 4)
    ]
    # A message that arrives when the server is about to stop gets no answer: its stream just ends.
    answered = [error for error in answers if error.message != NO_ANSWER]
    assert {type(error) for error in answered} == {MasterFenced}
