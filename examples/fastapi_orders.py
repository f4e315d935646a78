"""Orders taken by FastAPI: each is answered when its message is on the broker's device, and read back as it is shipped.

python examples/fastapi_orders.py --nameserver 127.0.0.1:9876     (pip install fastapi httpx2)
POCKETMQ_NAMESERVER=127.0.0.1:9876 uvicorn fastapi_orders:app     from the folder examples, to go on with
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from pocketmq.client import AsyncProducer, AsyncPullConsumer
from pocketmq.proto.errors import PocketMQError

TOPIC, GROUP = "example-fastapi-orders", "example-fastapi-shipping"
shipped: dict[str | None, int] = {}


async def ship() -> None:
    """Take what was ordered, for as long as the application runs; an offset is committed behind what was handled."""
    async with AsyncPullConsumer(GROUP, TOPIC) as consumer:
        async for order in consumer:
            shipped[order.key] = order.queue_offset


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One for all requests: it sends what comes at once together.
    async with AsyncProducer(acks="disk", value_serializer="json") as producer:
        app.state.producer = producer
        shipping = asyncio.create_task(ship())
        yield
        shipping.cancel()
        with suppress(asyncio.CancelledError):
            await shipping


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{name}", status_code=202)
async def order(name: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        receipt = await app.state.producer.send(TOPIC, body, key=name)
    except PocketMQError as error:
        raise HTTPException(503, error.message) from error
    return {"message_id": receipt.message_id, "durability": str(receipt.durability)}


@app.get("/orders/{name}")
async def status(name: str) -> dict[str, bool]:
    return {"shipped": name in shipped}


def main(nameserver: str) -> None:
    os.environ["POCKETMQ_NAMESERVER"] = nameserver
    with TestClient(app) as client:
        for number in range(5):
            client.post(f"/orders/o-{number}", json={"number": number})
        while not all(client.get(f"/orders/o-{number}").json()["shipped"] for number in range(5)):
            pass
    print("5 orders accepted, 5 shipped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    main(parser.parse_args().nameserver)
