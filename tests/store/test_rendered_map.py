"""The texts of a map: only what changed is rendered, in the order of the map."""

from __future__ import annotations

from pocketmq.store.rendered_map import RenderedMap


def test_only_what_changed_is_rendered_in_the_order_of_the_map() -> None:
    rendered: list[str] = []

    def render(name: str, entry: int) -> str:
        rendered.append(name)
        return f"{name}={entry}"

    text = RenderedMap(render)
    assert text.change([], {"a": 1, "b": 2, "c": 3})
    assert list(text.texts.values()) == ["a=1", "b=2", "c=3"]

    assert not text.change([], {"b": 5, "never": None})
    assert list(text.texts.values()) == ["a=1", "b=5", "c=3"]
    assert rendered == ["a", "b", "c", "b"]

    assert text.change(["a"], {"a": 7}), "it is the last one now"
    assert list(text.texts) == ["b", "c", "a"]
    assert text.change(["b", "unknown"], {})
    assert list(text.texts.values()) == ["c=3", "a=7"]
