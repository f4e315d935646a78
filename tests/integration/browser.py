"""A real browser, Debian's Chromium, and what tests look at in its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest

#: What a headless browser needs to run as root, and to ask nobody but us.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium_browser() -> Iterator[Any]:
    """Chromium, without a window; a test skips where it is missing, and in CI fails."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing: apt-get install chromium")
        pytest.skip("chromium is missing")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def watched(chromium: Any, base: str, **settings: Any) -> Iterator[Any]:
    """A page of the browser at BASE, which must complain of nothing and ask nobody else."""
    context = chromium.new_context(base_url=base, **settings)
    page = context.new_page()
    page.set_default_timeout(120_000)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(base) else complaints.append(asked.url),
    )
    yield page
    context.close()
    assert complaints == []


def column(page: Any, table: str, title: str) -> list[str]:
    return [
        cell.inner_text() for cell in page.query_selector_all(f'#{table} td[data-label="{title}"]')
    ]


def send_on(page: Any, body: str) -> None:
    """Send a message with BODY by the form of PAGE, a topic's, and see it among the newest."""
    page.get_by_text("Send a message").click()
    page.fill("textarea[name=body]", body)
    page.get_by_role("button", name="Send", exact=True).click()
    page.wait_for_selector("output:has-text('message id')")
    page.keyboard.press("Escape")
    page.wait_for_selector(f'#newest td:has-text("{body}")')


def grave_faults(page: Any, *rules: str) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds on PAGE that keeps people out, by RULES or by all; it has to find something good."""
    try:
        source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    except ModuleNotFoundError:
        if os.environ.get("CI"):
            pytest.fail("axe-core is missing: install the dev group")
        pytest.skip("axe-core is missing")
    page.evaluate(source)
    found = page.evaluate("rules => axe.run(rules.length ? {runOnly: rules} : {})", list(rules))
    assert found["passes"]
    return [
        (one["id"], [node["html"] for node in one["nodes"]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
