"""A FastStream application that takes orders from its own broker and has PocketMQ keep what is to happen later.

python examples/faststream_orders.py --nameserver 127.0.0.1:9876     (pip install 'faststream[nats]')
FastStream has brokers of its own (NATS, here in memory) and takes no other; its lifespan, context and handlers do.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from faststream import Context, ContextRepo, FastStream, TestApp
from faststream.nats import NatsBroker, TestNatsBroker
from pydantic import BaseModel

from pocketmq.client import AsyncProducer, AsyncPullConsumer

TOPIC, GROUP, COUNT = "example-faststream-reminders", "example-faststream", 5


class Order(BaseModel):
    number: int


@asynccontextmanager
async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
    async with AsyncProducer(value_serializer="json") as producer:
        context.set_global("producer", producer)
        yield


broker = NatsBroker()
app = FastStream(broker, lifespan=lifespan)


@broker.subscriber("orders")
async def remind(order: Order, producer: Annotated[AsyncProducer, Context()]) -> None:
    await producer.send(TOPIC, order.model_dump(), key=f"order-{order.number}", delay="1s")


async def main() -> None:
    async with TestNatsBroker(broker) as nats, TestApp(app):
        for number in range(COUNT):
            await nats.publish(Order(number=number), "orders")
        async with AsyncPullConsumer(GROUP, TOPIC) as consumer:
            found = set[str | None]()
            while len(found) < COUNT:
                found |= {message.key for message in await consumer.poll()}
    print(f"{COUNT} orders, {len(found)} reminders")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    os.environ["POCKETMQ_NAMESERVER"] = parser.parse_args().nameserver
    asyncio.run(main())
