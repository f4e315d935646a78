"""An error knows where the documentation explains its class."""

from __future__ import annotations

import pytest

from pocketmq.proto import doc_urls
from pocketmq.proto.errors import BY_NAME, TopicNotFound

from ..repository.source_tree import ROOT
from ..repository.test_links import anchors_of


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(doc_urls.VARIABLE, raising=False)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_class_has_its_entry_on_the_page(name: str) -> None:
    page, _, anchor = BY_NAME[name]("no").doc_url.partition("#")

    assert page == "docs/errors.md"
    assert anchor == name.lower()
    assert anchor in anchors_of((ROOT / page).read_text(encoding="utf-8"))


def test_a_class_of_a_program_has_the_entry_of_its_parent() -> None:
    class NoSuchShop(TopicNotFound):
        pass

    assert NoSuchShop("no").doc_url == "docs/errors.md#topicnotfound"


@pytest.mark.parametrize("site", ["https://docs.example/0.2", "https://docs.example/0.2/"])
def test_the_address_is_that_of_a_release_or_of_the_environment(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "https://docs.example/0.2/errors.html#topicnotfound"
    monkeypatch.setattr(doc_urls, "SITE", site)
    assert TopicNotFound("no").doc_url == expected

    monkeypatch.setattr(doc_urls, "SITE", "https://elsewhere.example")
    monkeypatch.setenv(doc_urls.VARIABLE, site)
    assert TopicNotFound("no").doc_url == expected
