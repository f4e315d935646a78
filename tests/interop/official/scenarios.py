"""What every official client must be able to do with our broker, each said once for all languages."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from .driver import ClientError, Message
from .programs import PROGRAMS, Program
from .stage import AWAIT_S, Stage

MIB: Final = 1 << 20
Scenario = Callable[[Stage], Awaitable[None]]

#: By name: what to do, and the commands that it takes.
SCENARIOS: Final[dict[str, tuple[Scenario, frozenset[str]]]] = {}


def scenario(*needs: str) -> Callable[[Scenario], Scenario]:
    """Put a scenario on the list; NEEDS: commands without which a language leaves it out."""

    def put(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = (function, frozenset(needs))
        return function

    return put


def scenarios_of(program: Program) -> list[str]:
    """Return the names of the scenarios that PROGRAM can play."""
    return [name for name, (_, needs) in SCENARIOS.items() if not needs & program.lacks]


def pairs() -> list[tuple[str, str]]:
    """Return (language, scenario) of all that can be played."""
    return [(name, title) for name, one in PROGRAMS.items() for title in scenarios_of(one)]


def same(found: object, wanted: object) -> None:
    """Raise AssertionError with both unless FOUND is WANTED."""
    assert found == wanted, f"{found!r}, wanted {wanted!r}"


async def refused(call: Awaitable[object], *codes: int) -> ClientError:
    """Return what CALL failed with: a code of CODES, or no code, where the client does not tell one."""
    try:
        taken = await call
    except ClientError as error:
        assert error.code in (None, *codes), error
        return error
    raise AssertionError(f"it was taken: {taken!r}")


async def nothing_more(stage: Stage, consumer: str) -> None:
    """Wait as long as a receive waits; raise AssertionError if something comes."""
    same(await stage.receive(consumer), [])


async def dead_letters(stage: Stage, group: str) -> list[Message]:
    """Return the dead letter of GROUP; its topic is there once there is one."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await stage.consume(await stage.simple(f"%DLQ%{group}"), 1)
            except ClientError:
                await asyncio.sleep(0.5)


def bodies(messages: list[Message]) -> list[str]:
    return [message["body"] for message in messages]


def attempts(messages: list[Message]) -> list[int]:
    return [message["attempt"] for message in messages]


# ---------------------------------------------------------------- simple consumers


@scenario()
async def normal(stage: Stage) -> None:
    """A message comes as it was sent, once; what was acknowledged does not come again."""
    topic = await stage.topic()
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    sent = {
        await stage.send(
            producer,
            topic,
            f"körper {n}",
            tag="T",
            keys=["k1", f"k-{n}"],
            properties={"color": "rot"},
        ): f"körper {n}"
        for n in range(10)
    }

    found = await stage.consume(consumer, len(sent))

    same({message["id"]: message["body"] for message in found}, sent)
    for message in found:
        same((message["topic"], message["tag"], message["attempt"]), (topic, "T", 1))
        same(message["keys"], sorted(["k1", f"k-{message['body'].split()[1]}"]))
        same(message["properties"], {"color": "rot"})
    await nothing_more(stage, consumer)


@scenario()
async def tags(stage: Stage) -> None:
    """A subscription to tags gets those and no others."""
    topic = await stage.topic()
    producer, consumer = await asyncio.gather(
        stage.producer(topic), stage.simple(topic, expression="red || blue")
    )
    for number in range(3):
        for tag in ("red", "green", "blue"):
            await stage.send(producer, topic, f"{tag} {number}", tag=tag)
    await stage.send(producer, topic, "without")

    found = await stage.consume(consumer, 6)

    wanted = sorted(f"{tag} {number}" for tag in ("red", "blue") for number in range(3))
    same(sorted(bodies(found)), wanted)
    await nothing_more(stage, consumer)


@scenario()
async def sql_filter(stage: Stage) -> None:
    """A subscription by SQL gets what its expression is true for."""
    topic = await stage.topic()
    expression = "price BETWEEN 10 AND 20 AND color IN ('red', 'blue') AND TAGS IS NOT NULL"
    producer, consumer = await asyncio.gather(
        stage.producer(topic), stage.simple(topic, filter="sql", expression=expression)
    )
    for price in (5, 10, 15, 25):
        for color in ("red", "green"):
            properties = {"price": str(price), "color": color}
            await stage.send(producer, topic, f"{color} {price}", tag="t", properties=properties)

    found = await stage.consume(consumer, 2)

    same(sorted(bodies(found)), ["red 10", "red 15"])
    await nothing_more(stage, consumer)


@scenario()
async def illegal_sql(stage: Stage) -> None:
    """An expression that does not compile is refused, at the latest by the first receive."""
    topic = await stage.topic()

    async def subscribe() -> list[Message]:
        return await stage.receive(await stage.simple(topic, filter="sql", expression="price >"))

    await refused(subscribe(), v2.ILLEGAL_FILTER_EXPRESSION)


@scenario()
async def fifo(stage: Stage) -> None:
    """An ordered group gets each message group's messages in the order of their sends, one batch at a time."""
    topic, group = await stage.topic("FIFO", queues=2), await stage.group(order=True)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic, group))
    groups = ("a", "b", "c")
    for number in range(5):
        for name in groups:
            await stage.send(producer, topic, f"{name} {number}", message_group=name)

    found: list[Message] = []
    while len(found) < 15:
        batch = await stage.collect(consumer, 1, batch=4)
        await stage.ack(consumer, batch)
        found += batch

    for name in groups:
        same(bodies([m for m in found if m["group"] == name]), [f"{name} {n}" for n in range(5)])
    same(set(attempts(found)), {1})


@scenario()
async def delay(stage: Stage) -> None:
    """A delayed message comes at its time, not before."""
    topic = await stage.topic("DELAY")
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    due_ms = int(time.time() + 3) * 1000
    sent = await stage.send(producer, topic, "later", deliver_at_ms=due_ms)

    (found,) = await stage.consume(consumer, 1)

    came_ms = time.time() * 1000
    same(found["id"], sent)
    assert due_ms - 1000 <= came_ms <= due_ms + 10_000, f"{came_ms - due_ms} ms after its time"


@scenario("recall")
async def recall(stage: Stage) -> None:
    """A recalled message never comes."""
    topic = await stage.topic("DELAY")
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    due_ms = int(time.time() * 1000) + 8000
    taken_back = await stage.driver(
        "send", client=producer, topic=topic, body="recalled", deliver_at_ms=due_ms
    )
    await stage.send(producer, topic, "not recalled", deliver_at_ms=due_ms)

    handle = taken_back["recall_handle"]
    done = await stage.driver("recall", client=producer, topic=topic, handle=handle)

    same(done["message_id"], taken_back["message_id"])
    same(bodies(await stage.consume(consumer, 1)), ["not recalled"])
    await nothing_more(stage, consumer)


@scenario("change")
async def invisible_duration(stage: Stage) -> None:
    """A message stays away as long as its consumer says last, and comes again counted."""
    topic = await stage.topic(queues=1)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    await stage.send(producer, topic, "again")
    (first,) = await stage.collect(consumer, 1)

    begun = time.monotonic()
    await stage.driver("change", client=consumer, number=first["number"], invisible_s=3)
    (second,) = await stage.collect(consumer, 1)
    waited_s = time.monotonic() - begun
    await stage.driver("change", client=consumer, number=second["number"], invisible_s=60)

    same(second["id"], first["id"])
    same((first["attempt"], second["attempt"]), (1, 2))
    assert 2 <= waited_s <= 15, waited_s
    await nothing_more(stage, consumer)
    await stage.ack(consumer, [second])


@scenario()
async def not_acknowledged(stage: Stage) -> None:
    """What is not acknowledged in time comes again, and the handle that it came with first is no good any more."""
    topic = await stage.topic(queues=1)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    await stage.send(producer, topic, "again")
    (first,) = await stage.collect(consumer, 1, invisible_s=10)

    (second,) = await stage.collect(consumer, 1)

    same((second["id"], second["attempt"]), (first["id"], 2))
    late = stage.ack(consumer, [first])
    if stage.program.tells_refused_acks:
        await refused(late, v2.INVALID_RECEIPT_HANDLE)
    else:
        await late
    await stage.ack(consumer, [second])
    await nothing_more(stage, consumer)


@scenario()
async def dead_letter_unacknowledged(stage: Stage) -> None:
    """A message that was delivered as often as its group allows goes to the group's dead letters."""
    topic, group = await stage.topic(queues=1), await stage.group(retry_max_times=1)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic, group))
    sent = await stage.send(producer, topic, "poison", tag="t", properties={"a": "b"})

    lease_s = 10
    delivered = [(await stage.collect(consumer, 1, invisible_s=lease_s))[0] for _ in range(2)]
    # The lease ends by the broker's own clock, and while the next receive waits: a third delivery would be in it.
    await asyncio.sleep(lease_s - AWAIT_S + 1)
    third = await stage.receive(consumer)
    (dead,) = await dead_letters(stage, group)

    same((attempts(delivered), third), ([1, 2], []))
    same((dead["body"], dead["tag"], dead["properties"]["a"]), ("poison", "t", "b"))
    same({message["id"] for message in delivered}, {sent})


# ---------------------------------------------------------------- push consumers


@scenario("push")
async def push(stage: Stage) -> None:
    """A push consumer's listener is called once with each message."""
    topic, group = await stage.topic(), await stage.group()
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.push(topic, group))
    sent = [await stage.send(producer, topic, f"m {n}") for n in range(20)]

    found = await stage.pushed(consumer, len(sent))

    same(sorted(message["id"] for message in found), sorted(sent))
    await stage.close(consumer)
    await nothing_more(stage, await stage.simple(topic, group))


@scenario("push")
async def retry(stage: Stage) -> None:
    """What a listener fails comes again, counted, until it succeeds."""
    topic, group = await stage.topic(), await stage.group()
    consumer = await stage.push(topic, group, failures=1)
    producer = await stage.producer(topic)
    sent = sorted([await stage.send(producer, topic, f"m {n}") for n in range(3)])

    found = await stage.pushed(consumer, 6)

    for attempt in (1, 2):
        same(sorted(m["id"] for m in found if m["attempt"] == attempt), sent)


@scenario("push")
async def dead_letter(stage: Stage) -> None:
    """What a listener fails too often is a dead letter."""
    topic, group = await stage.topic(), await stage.group(retry_max_times=1)
    consumer = await stage.push(topic, group, failures=99)
    producer = await stage.producer(topic)
    await stage.send(producer, topic, "poison", keys=["k"])

    found = await stage.pushed(consumer, 2)
    (dead,) = await dead_letters(stage, group)

    same(attempts(found), [1, 2])
    same((dead["body"], dead["keys"]), ("poison", ["k"]))


@scenario("push")
async def push_fifo(stage: Stage) -> None:
    """A push consumer of an ordered group is called in order, whatever failed before: it tries again by itself."""
    topic, group = await stage.topic("FIFO", queues=2), await stage.group(order=True)
    consumer, producer = await asyncio.gather(stage.push(topic, group), stage.producer(topic))
    for number in range(8):
        for name in ("a", "b"):
            await stage.send(producer, topic, f"{name} {number}", message_group=name)

    found = await stage.pushed(consumer, 16)

    for name in ("a", "b"):
        same(bodies([m for m in found if m["group"] == name]), [f"{name} {n}" for n in range(8)])


# ---------------------------------------------------------------- transactions


@scenario()
async def transaction(stage: Stage) -> None:
    """Committed messages come; rolled back ones do not; of forgotten ones the broker asks the producer."""
    topic = await stage.topic("TRANSACTION")
    producer, consumer = await asyncio.gather(
        stage.producer(topic, transactions=True), stage.simple(topic)
    )
    plan = {"committed": "commit", "rolled back": "rollback", "forgotten": "leave", "lost": "leave"}
    for body, outcome in plan.items():
        properties = {"check": "commit" if body == "forgotten" else "rollback"}
        await stage.send(producer, topic, body, transaction=outcome, properties=properties)

    checked: set[str] = set()
    while len(checked) < 2:  # On a slow machine the broker may ask twice.
        checked |= set(bodies(await stage.pushed(producer, 1)))
    found = await stage.consume(consumer, 2)

    same(checked, {"forgotten", "lost"})
    same(sorted(bodies(found)), ["committed", "forgotten"])
    await nothing_more(stage, consumer)


# ---------------------------------------------------------------- sizes


@scenario()
async def body_1_mib(stage: Stage) -> None:
    """A body of 1 MiB comes as it was sent."""
    await _large(stage, MIB, to_client=True)


@scenario()
async def body_4_mib(stage: Stage) -> None:
    """The largest body comes as it was sent, as far as the client can take as much."""
    await _large(stage, 4 * MIB, to_client=stage.program.takes_4_mib)


async def _large(stage: Stage, size: int, *, to_client: bool) -> None:
    topic = await stage.topic(queues=1)
    body = (b"0123456789abc" * (size // 13 + 1))[:size]
    producer = await stage.producer(topic)
    await stage.send(producer, topic, "0123456789abc", size=size)
    if to_client:
        (found,) = await stage.consume(await stage.simple(topic), 1)
        same((found["size"], found["md5"]), (size, hashlib.md5(body).hexdigest()))
    else:
        same(await stage.peer.receive(topic, await stage.group()), [body])


@scenario()
async def body_too_large(stage: Stage) -> None:
    """A body above 4 MiB is refused, by the client or by the broker; the producer goes on."""
    topic = await stage.topic(queues=1)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    too_large = stage.send(producer, topic, "x", size=4 * MIB + 1)
    await refused(too_large, v2.MESSAGE_BODY_TOO_LARGE, *range(20))
    await stage.send(producer, topic, "small")
    same(bodies(await stage.consume(consumer, 1)), ["small"])


@scenario()
async def compression(stage: Stage) -> None:
    """A gzip body is handed to the client as it is stored, and said to be one: it unpacks it."""
    topic = await stage.topic(queues=1)
    plain = b"again and again " * 1000
    packed = gzip.compress(plain)
    await stage.peer.send(topic, packed, encoding=v2.GZIP)

    (found,) = await stage.consume(await stage.simple(topic), 1)

    wanted = plain if stage.program.unpacks else packed
    same((found["size"], found["md5"]), (len(wanted), hashlib.md5(wanted).hexdigest()))


# ---------------------------------------------------------------- what is refused


@scenario()
async def unknown_topic(stage: Stage) -> None:
    """A topic that does not exist is said not to exist, to producers and consumers."""

    async def send(topic: str) -> str:
        return await stage.send(await stage.producer(topic), topic, "lost")

    async def receive(topic: str) -> list[Message]:
        return await stage.receive(await stage.simple(topic))

    for use in (send, receive):
        topic = stage.name("nowhere")
        error = await refused(use(topic), v2.TOPIC_NOT_FOUND)
        assert error.code or topic in error.text or "rout" in error.text.lower(), error


@scenario()
async def illegal_properties(stage: Stage) -> None:
    """Reserved and unprintable properties, and too many of them, are refused with their codes; the producer goes on."""
    topic = await stage.topic(queues=1)
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    many = {f"key {n}": "v" for n in range(129)}
    wrong = [
        ({"properties": {"UNIQ_KEY": "mine"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": {"key": "two\nlines"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": many}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"tag": "a|b"}, v2.ILLEGAL_MESSAGE_TAG),
    ]
    for settings, code in wrong:
        await refused(stage.send(producer, topic, "refused", **settings), code)  # type: ignore[arg-type]
    await stage.send(producer, topic, "small")
    same(bodies(await stage.consume(consumer, 1)), ["small"])


@scenario()
async def wrong_type(stage: Stage) -> None:
    """A message of another type than its topic's is refused, by the client or by the broker."""
    topic = await stage.topic("FIFO")
    producer = await stage.producer(topic)
    call = stage.send(producer, topic, "not ordered")
    await refused(call, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)


@scenario()
async def long_polling(stage: Stage) -> None:
    """A receive that waits is answered when a message comes."""
    topic = await stage.topic()
    producer, consumer = await asyncio.gather(stage.producer(topic), stage.simple(topic))
    waiting = asyncio.create_task(stage.receive(consumer))
    waited_s = 2  # The message comes to a receive that waits already, which no client tells.
    await asyncio.sleep(waited_s)
    begun = time.monotonic()
    await stage.send(producer, topic, "now")

    found = await waiting

    same(bodies(found), ["now"])
    took_s = time.monotonic() - begun
    left_s = AWAIT_S - waited_s
    assert took_s < left_s - 1, (
        f"{took_s} s; the receive would have ended by itself after {left_s} s"
    )
    await stage.ack(consumer, found)
