"""`render` puts a page's data into its template, one of `templates/`.

Templates escape all values: names, keys and bodies of messages stay text. So no template uses `safe`, and no filter
returns markup. A name that is not in the data raises an error.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...proto.time_text import format_duration, format_instant
from ..connections import age_text, bytes_text
from .charts import bar_boxes, clock_lines, line_points

_BODY_SHORT: Final = 100


def render(page: str, data: dict[str, Any]) -> str:
    """Return the HTML of PAGE, the name of a template without its suffix, with DATA."""
    text: str = _TEMPLATES.get_template(f"{page}.html").render(data)
    return text


def short_body(row: dict[str, Any]) -> str:
    """Return the beginning of the body of a message."""
    text: str = row["body"] if row["body"] is not None else f"base64 {row['body_base64']}"
    return text if len(text) <= _BODY_SHORT else f"{text[:_BODY_SHORT]}…"


_TEMPLATES: Final = Environment(
    loader=PackageLoader(__name__.rpartition(".")[0]),
    autoescape=True,
    auto_reload=False,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "age": age_text,
    "bar_boxes": bar_boxes,
    "bytes": bytes_text,
    "clock_lines": clock_lines,
    "decimal": "{:,.1f}".format,
    "duration": format_duration,
    "indented": partial(json.dumps, indent=2, ensure_ascii=False),
    "instant": format_instant,
    "line_points": line_points,
    "number": "{:,}".format,
    "part": partial(quote, safe=""),  # One part of a path.
    "percent": "{:.0%}".format,
    "short_body": short_body,
}
