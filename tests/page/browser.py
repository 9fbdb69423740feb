"""A real browser without a network, in which pages are opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
_PATIENCE_MS = 600_000
"""A machine that does much else at once is slow, and no fault of the page."""


@dataclass
class Opened:
    """A page in the browser. said: errors of its console and of its scripts, and what it asked of the network."""

    page: Any
    said: list[str] = field(default_factory=list)

    def go(self, view: str) -> None:
        """Show a view, as a click does."""
        self.page.click(f"nav button[data-view={view}]")
        self.page.wait_for_selector(f"body[data-ready={view}]")
        self.drawn()

    def drawn(self) -> None:
        """Wait until what is drawn in the next frame is there."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def views(self) -> list[str]:
        names: list[str] = self.page.eval_on_selector_all("nav button", "all => all.map(one => one.dataset.view)")
        return names

    def figures(self, name: str) -> list[str]:
        """Return the numbers of a column, or a figure, as the page has them."""
        found: list[str] = self.page.eval_on_selector_all(
            "[data-figure]",
            "(all, name) => all.filter(one => one.dataset.figure === name)"
            ".map(one => one.dataset.value ?? one.textContent)",
            name,
        )
        return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield Debian's Chromium; skip where it, or what drives it, is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = CHROMIUM if Path(CHROMIUM).exists() else shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS), timeout=_PATIENCE_MS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
    """Open a page of a file in a window of its own; ready once it shows its first view."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    found = Opened(page)
    page.on("console", lambda message: found.said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("request", lambda request: found.said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=overview]")
    yield found
    context.close()
