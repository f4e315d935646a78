"""Writes the generated blocks of all pages: `make reference`."""

from __future__ import annotations

from .pages import DOCS, PAGES, updated


def main() -> None:
    """Write each page that is not current."""
    for name in PAGES:
        page = DOCS / name
        before = page.read_text(encoding="utf-8")
        if (after := updated(name, before)) != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
