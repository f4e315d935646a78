"""Orders taken by FastAPI: answered when their messages are on the broker's disk, and shipped in the background.

python examples/fastapi_orders.py --nameserver 127.0.0.1:9876     (pip install fastapi httpx2)
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from pocketmq.client import AsyncProducer, AsyncPullConsumer
from pocketmq.proto.errors import PocketMQError

TOPIC, GROUP, COUNT = "example-fastapi-orders", "example-fastapi-shipping", 5


async def ship(shipped: set[str | None]) -> None:
    async with AsyncPullConsumer(GROUP, TOPIC) as consumer:
        async for order in consumer:  # Its offset is committed once the next one is asked for.
            shipped.add(order.key)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.shipped = set()
    async with AsyncProducer(acks="disk", value_serializer="json") as app.state.producer:
        shipping = asyncio.create_task(ship(app.state.shipped))
        yield
        shipping.cancel()
        await asyncio.wait((shipping,))


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{name}", status_code=202)
async def order(name: str, body: dict[str, Any]) -> dict[str, str]:
    try:  # One producer for all requests: it sends what comes at once together.
        return {"id": (await app.state.producer.send(TOPIC, body, key=name)).message_id}
    except PocketMQError as error:
        raise HTTPException(503, error.message) from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    os.environ["POCKETMQ_NAMESERVER"] = parser.parse_args().nameserver
    with TestClient(app) as client:
        codes = {client.post(f"/orders/{n}", json={"number": n}).status_code for n in range(COUNT)}
        while len(app.state.shipped) < COUNT:
            client.get("/docs")
    print(f"{COUNT} orders accepted ({codes}), {len(app.state.shipped)} shipped")
