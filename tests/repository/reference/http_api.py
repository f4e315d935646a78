"""docs/http-api.md: the administration API, from its openapi.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from ..source_tree import ROOT
from .markdown import code, plain, sentence, table

_FILE: Final = ROOT / "tools" / "console" / "static" / "openapi.yaml"
_METHODS: Final = ("get", "post")


def about() -> str:
    """Return what the file says of the whole API."""
    return plain(_document()["info"]["description"])


def calls() -> str:
    """Return a section for each call."""
    return "\n\n".join(
        _call(path, method, item)
        for path, item in _document()["paths"].items()
        for method in _METHODS
        if method in item
    )


def _document() -> Any:
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


def _resolved(node: Any) -> Any:
    """Return NODE, or what it refers to."""
    if "$ref" not in node:
        return node
    found = _document()
    for name in node["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found


def _call(path: str, method: str, item: Any) -> str:
    call = item[method]
    parts = [f"### {method.upper()} {path}", plain(sentence(call["summary"]))]
    if "description" in call:
        parts.append(plain(call["description"]))
    if rows := [*_parameters(item, call), *_body(call)]:
        parts.append(table(("Parameter", "In", "Type", "Meaning"), rows))
    parts.append(f"Answers: {', '.join(_answers(call))}.")
    return "\n\n".join(part.strip() for part in parts)


def _parameters(item: Any, call: Any) -> Iterator[tuple[str, str, str, str]]:
    for given in (*item.get("parameters", ()), *call.get("parameters", ())):
        one = _resolved(given)
        yield (
            code(one["name"]),
            one["in"],
            _type(one["schema"], required=one.get("required", False)),
            plain(one.get("description", "")),
        )


def _body(call: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields of the JSON object that is sent."""
    if "requestBody" not in call:
        return
    whole = _resolved(call["requestBody"]["content"]["application/json"]["schema"])
    for given in whole.get("allOf", [whole]):
        schema = _resolved(given)
        required = schema.get("required", ())
        for name, one in schema["properties"].items():
            text = plain(one.get("description", ""))
            yield code(name), "body", _type(one, required=name in required), text


def _type(schema: Any, *, required: bool) -> str:
    words = [
        "list of" if schema["type"] == "array" else "",
        (schema.get("items") or schema)["type"],
    ]
    limits = [
        " or ".join(map(code, schema.get("enum", ()))),
        f"≥ {schema['minimum']}" if "minimum" in schema else "",
        f"≤ {schema['maximum']}" if "maximum" in schema else "",
        f"default {code(schema['default'])}" if "default" in schema else "",
        "required" if required else "",
    ]
    return ", ".join(part for part in (" ".join(filter(None, words)), *limits) if part)


def _answers(call: Any) -> Iterator[str]:
    for status, given in call["responses"].items():
        description = _resolved(given)["description"].rstrip(".")
        content = next(iter(_resolved(given).get("content", {})), "")
        yield f"{status} {description}" + (f" ({code(content)})" if content else "")
