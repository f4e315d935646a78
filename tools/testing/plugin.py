"""The pytest plugin: fixtures with a broker, new topics and new groups.

What a broker is like say, the later the stronger: the settings of pytest (`pocketmq_clock`, `pocketmq_process`,
`pocketmq_faults`, `pocketmq_seed`), the marker `pocketmq` of a module, class or test, and the parameter of the
fixture. Tests that want brokers of different kinds are run kind by kind, as pytest does with parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from .local_broker import AsyncLocalBroker, LocalBroker
    from .servers import BrokerOptions

_BROKER: Final = "pocketmq_broker"
_MARKER: Final = "pocketmq"
_SETTINGS: Final = {
    "clock": "clock of messages: virtual, which only the test advances (default), or system",
    "process": "run the broker in its own process, which kill() ends like kill -9 (default: false)",
    "faults": "faults to inject in every test, as for `pocketmq serve --faults` (default: none)",
    "seed": "of what goes wrong (default: 0)",
}


class AsInstalled:
    """Finds the modules of PocketMQ in front of pytest, which would rewrite all assertions of what brings a plugin.

    That takes seconds where it was not done before, and leaves them with a bytecode of their own.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("pocketmq.") else None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    if AsInstalled not in sys.meta_path:
        sys.meta_path.insert(0, AsInstalled)


def pytest_unconfigure() -> None:
    if AsInstalled in sys.meta_path:
        sys.meta_path.remove(AsInstalled)


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, text in _SETTINGS.items():
        parser.addini(f"pocketmq_{name}", f"PocketMQ: {text}", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(clock=…, process=…, faults=…, seed=…, broker={{…}}, store={{…}}): the broker that {_BROKER} is.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the fixture's parameter of what the markers say, the nearest last."""
    marks = list(metafunc.definition.iter_markers(_MARKER))
    if _BROKER not in metafunc.fixturenames or not marks:
        return
    if any(_BROKER in str(one.args[0]) for one in metafunc.definition.iter_markers("parametrize")):
        return  # The parameter is stronger.
    wanted: dict[str, Any] = {}
    for mark in reversed(marks):
        if mark.args:
            raise pytest.UsageError(
                f"the marker {_MARKER} takes names with values, such as clock='system'"
            )
        wanted |= mark.kwargs
    metafunc.parametrize(_BROKER, [_Wanted(wanted)], indirect=True, ids=[_shown(wanted)])


class _Wanted(dict[str, Any]):
    """Options of a broker that are one parameter: equal ones share a broker."""

    def __hash__(self) -> int:  # type: ignore[override]  # It is immutable.
        return hash(repr(sorted(self.items(), key=repr)))


def _shown(wanted: Mapping[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in wanted.items()).replace(" ", "")


def _options(request: pytest.FixtureRequest) -> BrokerOptions:
    from ...proto.errors import ConfigError
    from .servers import BrokerOptions

    found: dict[str, Any] = {}
    for name in _SETTINGS:
        if text := str(request.config.getini(f"pocketmq_{name}")).strip():
            found[name] = text
    given = getattr(request, "param", None) or {}
    if not isinstance(given, Mapping):
        raise pytest.UsageError(
            f"the parameter of {_BROKER} is {given!r}: make it a dict of options"
        )
    try:
        return BrokerOptions.of(found | dict(given))
    except ConfigError as error:
        raise pytest.UsageError(error.message) from None


@pytest.fixture(scope="session")
def pocketmq_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBroker]:
    """A broker with a name server, on free ports and a store of its own, for all tests."""
    options = _options(request)
    from .local_broker import LocalBroker

    with LocalBroker(tmp_path_factory.mktemp("pocketmq"), options) as broker:
        yield broker


@pytest.fixture(scope="session")
def pocketmq_async_broker(pocketmq_broker: LocalBroker) -> AsyncLocalBroker:
    """`pocketmq_broker`, for tests that are coroutines: it has the same methods, to be awaited."""
    return pocketmq_broker.for_coroutines


@pytest.fixture
def pocketmq_topic(pocketmq_broker: LocalBroker) -> str:
    """The name of a new topic, which exists."""
    return pocketmq_broker.create_topic()


@pytest.fixture
def pocketmq_group(pocketmq_broker: LocalBroker) -> str:
    """An unused name of a group."""
    return pocketmq_broker.fresh_name("group")
