"""The settings: what type checkers see is what the dataclasses take."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from pocketmq.client.config import (
    ConsumerConfig,
    ConsumerSettings,
    ProducerConfig,
    ProducerSettings,
)
from pocketmq.client.name_server_addresses import parse_addresses
from pocketmq.client.push_config import PushConfig, PushSettings
from pocketmq.proto.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ProducerConfig, ProducerSettings),
        (ConsumerConfig, ConsumerSettings),
        (PushConfig, PushSettings),
    ],
)
def test_keyword_arguments_are_the_fields(config: type, settings: type) -> None:
    expected = {field.name for field in fields(config)} - {"nameservers"}
    types = get_type_hints(config)

    assert get_type_hints(settings) == {name: types[name] for name in expected}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        ("a:1,b:2;c:3 d:4", ("a:1", "b:2", "c:3", "d:4")),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_name_servers_are_separated_by_commas_semicolons_or_blanks(
    text: str, addresses: tuple[str, ...]
) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", " ", "a", "a:", ":1", "a:0", "a:65536", "::1:9876", "a:1,b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="nameservers"):
        parse_addresses(text)
