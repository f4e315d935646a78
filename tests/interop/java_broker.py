"""Apache RocketMQ 5.5.0's name server and brokers as processes, and what is asked of them over remoting."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from pocketmq.proto.errors import ClientError
from pocketmq.proto.remoting.client import RemotingClient
from pocketmq.proto.remoting.command import RemotingCommand

from .java_oracle import BUILD

_OPENS: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_SEND: Final = 310
_UPDATE_OFFSET: Final = 15
_CREATE_TOPIC: Final = 17
_CREATE_GROUP: Final = 200


class JavaServer:
    """One Java process in FOLDER, `MAIN -c CONFIG`, whose output says `success` when it serves."""

    def __init__(self, folder: Path, name: str, main: str, config: dict[str, str]) -> None:
        self.folder = folder
        self._main = main
        self._config = folder / f"{name}.conf"
        self._log = folder / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        java = shutil.which("java")
        assert java is not None
        lib = Path(BUILD) / "lib"
        jars = [str(jar) for jar in sorted(lib.glob("*.jar")) if "client-java" not in jar.name]
        command = [java, "-Xms64m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", *_OPENS, f"-Duser.home={self.folder / 'home'}"]
        command += [f"-Drocketmq.home.dir={self.folder}", "-cp", ":".join(jars), self._main]
        self.process = self._started([*command, "-c", str(self._config)])
        for _ in range(1200):
            if b"success" in self._log.read_bytes():
                return
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            await asyncio.sleep(0.1)
        raise AssertionError(self._log.read_text()[-2000:])

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> None:
        """Return once the process has ended."""
        assert self.process is not None
        await asyncio.get_running_loop().run_in_executor(None, self.process.wait)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        await self.ended()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def name_server(folder: Path, port: int, controller: int | None = None) -> JavaServer:
    """Return a Java name server, with a controller at port CONTROLLER."""
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    config = {"listenPort": str(port)}
    if controller is not None:
        config |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-127.0.0.1:{controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(folder / "controller"),
        }
    return JavaServer(folder, "namesrv", main, config)


class JavaBroker(JavaServer):
    """A Java broker on PORT (requests), PORT + 1 (its log), with its store in FOLDER/store."""

    def __init__(self, folder: Path, port: int, nameserver: int, **settings: str) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.ha_address = f"127.0.0.1:{port + 1}"
        self.store = folder / "store"
        config = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": f"127.0.0.1:{nameserver}",
            "brokerRole": "ASYNC_MASTER",
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "waitTimeMillsInSendQueue": "30000",
            "osPageCacheBusyTimeOutMills": "30000",
            "autoCreateTopicEnable": "true",
        }
        super().__init__(
            folder, "broker", "org.apache.rocketmq.broker.BrokerStartup", config | settings
        )


class Remote:
    """What a client and an administrator ask of the broker at ADDRESS."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    @classmethod
    async def of(cls, address: str, tries: int = 600) -> Self:
        for _ in range(tries):
            try:
                return cls(await RemotingClient.connect(address))
            except ClientError:
                await asyncio.sleep(0.1)
        raise AssertionError(f"{address} does not answer")

    async def send(
        self, topic: str, body: bytes, queue: int = 0, **properties: str
    ) -> RemotingCommand:
        """Send a message; return the answer."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        short = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "0"}
        short |= {"h": "0", "i": text, "j": "0", "k": "false", "l": "0", "m": "false"}
        return await self._client.call(_SEND, short, body, timeout_s=30)

    async def topic(self, name: str, queues: int = 4) -> None:
        numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
        fields = {"topic": name, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
        fields |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
        await self._client.call(_CREATE_TOPIC, fields | numbers)

    async def group(self, name: str, retries: int) -> None:
        body = f'{{"groupName":"{name}","retryMaxTimes":{retries}}}'.encode()
        await self._client.call(_CREATE_GROUP, body=body)

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        await self._client.call(_UPDATE_OFFSET, fields | {"commitOffset": str(offset)})

    async def call(self, code: int, **fields: str) -> RemotingCommand:
        return await self._client.call(code, fields)

    def close(self) -> None:
        self._client.close()


@contextmanager
def closing_all(servers: Sequence[JavaServer]) -> Iterator[None]:
    """End SERVERS afterwards, whatever happens."""
    try:
        yield
    finally:
        for server in servers:
            server.close()
