"""Addresses of pages of the documentation: on the site of this version, or in a checkout.

A release writes the address of its site into SITE (`.github/addresses.py`). A checkout knows none.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "POCKETMQ_DOCS_URL"
#: The folder of the site for this version, with "/" at its end; "": there is none.
SITE: Final = ""


def page_url(page: str, anchor: str) -> str:
    """Return the address of ANCHOR in PAGE: an absolute URL, or the path of its source if no site is known."""
    site = os.environ.get(VARIABLE, SITE)
    if not site:
        return f"docs/{page}.md#{anchor}"
    return f"{site.rstrip('/')}/{page}.html#{anchor}"
