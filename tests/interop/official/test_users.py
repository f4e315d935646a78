"""Official clients where there are users: who signs with the right secret does what he may; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pocketmq.client import AsyncAdmin

from .driver import ClientError, Driver, dialling
from .stage import AWAIT_S, CONFIG, Server

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(300)]

LANGUAGES = ["python", "java", "go", "node", "rust"]
USERS = {
    "root": {"secret": "root-secret", "type": "Super"},
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders", "actions": ["Pub", "Sub"]},
            {"resource": "Group:billing", "actions": ["Sub"]},
        ],
    },
}
#: Apache's code for whoever is not known, or may not.
REFUSED = 40_100


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_client_that_signs_does_what_its_user_may_and_nothing_else(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.yaml"
    users.touch(0o600)
    users.write_text(yaml.safe_dump({"users": USERS}))
    server = Server(tmp_path, f"{CONFIG}  users: {users}\n")
    try:
        async with AsyncAdmin(server.nameserver, user="root", secret="root-secret") as admin:
            for topic in ("orders", "secret"):
                await admin.create_topic(topic, queues=1)
            await admin.create_group("billing")
        monkeypatch.setenv("OFFICIAL_USER", "alice")
        monkeypatch.setenv("OFFICIAL_SECRET", "alice-secret")
        async with dialling(language, server.address, tmp_path / "log") as driver:
            await driver("producer", name="p", topics=["orders"])
            await driver("send", client="p", topic="orders", body="for billing")
            await driver("simple", name="s", group="billing", topic="orders", await_s=AWAIT_S)
            found = (await driver("receive", client="s", count=1, invisible_s=60))["messages"]
            assert [one["body"] for one in found] == ["for billing"]
            await driver("ack", client="s", number=found[0]["number"])
            assert await is_refused(driver, "secret")
        monkeypatch.setenv("OFFICIAL_SECRET", "another")
        async with dialling(language, server.address, tmp_path / "log") as driver:
            assert await is_refused(driver, "orders")
        async with AsyncAdmin(server.nameserver, user="root", secret="root-secret") as admin:
            assert await stored(admin, "orders") == 1
            assert await stored(admin, "secret") == 0
    finally:
        assert server.stop() == 0


async def is_refused(driver: Driver, topic: str) -> bool:
    """Does a client that sends to TOPIC hear of an error? Some tell no code, only that they could not begin."""
    try:
        await driver("producer", name=topic, topics=[topic])
        await driver("send", client=topic, topic=topic, body="x")
    except ClientError as error:
        return error.code in (REFUSED, None)
    return False


async def stored(admin: AsyncAdmin, topic: str) -> int:
    """Return how many messages TOPIC has."""
    return sum(one.max_offset for one in (await admin.describe_topic(topic)).queues)
