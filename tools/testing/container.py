"""A broker in a container, for testcontainers-python; needs the extra `testcontainers` and the image.

    docker build -f docker/Dockerfile -t pocketmq .

    with PocketMQContainer() as container:
        Producer(container.nameserver)

Official clients may dial any port; our own go where the name server says, which has to be known when the broker begins.
So the ports of this machine are chosen before, and the broker gets a configuration file that names them.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from ...proto.extras import pip_install
from ..faults import parse_faults
from ..options import READY
from .servers import free_port

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: a broker in a container needs {pip_install('testcontainers')}"
    ) from error

_BROKER: Final = 8081
_NAMESERVER: Final = 9876
_SETTINGS: Final = "POCKETMQ_SETTINGS"
_FILE: Final = "/tmp/pocketmq.yaml"  # In the container.


class PocketMQContainer(DockerContainer):
    """IMAGE with a name server and a broker: CLOCK, FAULTS and SEED as for `pocketmq serve`."""

    def __init__(
        self,
        image: str = "pocketmq",
        *,
        clock: str = "system",
        faults: str = "",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        """SETTINGS are those of DockerContainer. Raises InvalidArgument for faults that is none."""
        parse_faults(faults)
        super().__init__(image, **settings)
        self._host_ports = {_BROKER: free_port(), _NAMESERVER: free_port()}
        self._serve = ["pocketmq", "serve", "--config", _FILE, "--clock", clock]
        if faults:
            self._serve += ["--faults", faults, "--seed", str(seed)]
        for inside, outside in self._host_ports.items():
            self.with_bind_ports(inside, outside)
        self.waiting_for(LogMessageWaitStrategy(f"{READY}{{"))

    def _configure(self) -> None:
        served = {
            "nameserver": {"host": "0.0.0.0", "port": _NAMESERVER},
            "broker": {"host": "0.0.0.0", "port": _BROKER, "advertised_address": self.endpoint},
            "store": {"path": "/store"},
        }
        self.with_env(_SETTINGS, json.dumps(served))
        self.with_kwargs(entrypoint=["sh", "-c"])
        script = f'printf %s "${_SETTINGS}" > {_FILE} && exec {shlex.join(self._serve)}'
        self.with_command([script])

    @property
    def nameserver(self) -> str:
        """What PocketMQ's own clients are given."""
        return self._address(_NAMESERVER)

    @property
    def endpoint(self) -> str:
        """What official clients of RocketMQ 5 are given as their endpoints."""
        return self._address(_BROKER)

    def _address(self, inside: int) -> str:
        return f"{self.get_container_host_ip()}:{self._host_ports[inside]}"
