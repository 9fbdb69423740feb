"""The pictures of ``docs/gallery.md``: of each view one, taken in Chromium from the page of a kept trace.

They are taken in a window of 1280 pixels without a network, of the light scheme, and their colours are reduced to a
table, so that files are small.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.tree import ROOT

PICTURES = ROOT / "docs" / "pictures"
MOST_PICTURE_BYTES, MOST_BYTES = 200 << 10, 3 << 19
"""Of a picture, and of all together."""
_WIDTH = 1280
_COLOURS = 64
_PATIENCE_MS = 120_000


@dataclass(frozen=True)
class Picture:
    """A picture. view: of the page. traces: of the page, by their names; two are compared. choose: what is chosen in
    the view's controls, by label: the text of an option, or how it begins. height: pixels that are taken of the view,
    at most. whole: with the page's head and its list of views.
    """

    view: str
    traces: tuple[str, ...]
    choose: Mapping[str, str] = field(default_factory=dict)
    height: int = 900
    keys: tuple[str, ...] = ()
    whole: bool = False
    name: str = ""

    @property
    def path(self) -> str:
        """The file's name."""
        return f"{self.name or self.view}.png"


SHOWN = (
    Picture("overview", ("training",), whole=True),
    Picture("findings", ("faults",), height=700),
    Picture("kernels", ("training",), height=520),
    Picture("launches", ("training",), height=560),
    Picture("schedule", ("eleven",), {"Kernel and map": "attention"}, height=930),
    Picture("warps", ("eleven",), {"Kernel and map": "softmax"}, height=850),
    Picture("inside", ("roles",), height=760),
    Picture("maps", ("eleven",), {"Kernel": "attention"}, height=900),
    Picture("source", ("faults",), height=760),
    Picture("memory", ("sparse",), {"Addresses against": "warps of the grid"}, height=1000),
    Picture("coverage", ("training",), height=560),
    Picture("comparison", ("fenced", "unfenced"), height=560),
)
"""One picture of each view of ``neutrino.page.registry``, in its order."""


def write_page(traces: Sequence[Path], page: Path) -> None:
    """Write the page of a trace, or that of two of one folder which are compared. Raises OSError where none was
    written.
    """
    # From the traces' folder, so that no page names it.
    words = [traces[0].name, *(["--diff", traces[1].name] if len(traces) > 1 else []), "--html", str(page)]
    command = [sys.executable, "-m", "neutrino.cli.report", *words, "--source", str(ROOT / "bench" / "workloads")]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=traces[0].parent,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    # Status 1 is that of a comparison which found something.
    if not page.is_file():
        raise OSError(f"{traces[0]}: no page: exit status {done.returncode}\n{done.stderr}")


@contextmanager
def _browser() -> Iterator[Any]:
    """Yield Debian's Chromium. Raises OSError without it."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def _opened(browser: Any, path: Path) -> Iterator[Any]:
    """Yield a page in a window of its own, once it shows its first view. Raises OSError for an error of its console."""
    context = browser.new_context(color_scheme="light", viewport={"width": _WIDTH, "height": 900}, offline=True)
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=overview]")
    yield page
    context.close()
    if said:
        raise OSError(f"{path.name}: {said[0]}")


def _go(page: Any, view: str) -> None:
    """Show a view, and wait until it is drawn."""
    page.click(f"nav button[data-view={view}]")
    page.wait_for_selector(f"body[data-ready={view}]")
    _drawn(page)


def _drawn(page: Any) -> None:
    """Wait until what is drawn in the next frame is there."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _choose(page: Any, label: str, wanted: str) -> None:
    """Choose, in the control of that label, the first option whose text has what is wanted."""
    control = page.locator(f".controls label:has-text('{label}') select").first
    texts: list[str] = control.locator("option").all_inner_texts()
    found = [text for text in texts if wanted in text]
    if not found:
        raise LookupError(f"{label}: none of {texts} has {wanted!r}")
    control.select_option(label=found[0])
    _drawn(page)


def _small(data: bytes) -> bytes:
    """Return a PNG with a table of colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    out = io.BytesIO()
    table = image.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    table.save(out, "PNG", optimize=True)
    return out.getvalue()


def _taken(page: Any, picture: Picture) -> bytes:
    """Return the picture of a view, as PNG: from its top, and no more than there is."""
    _go(page, picture.view)
    for label, wanted in picture.choose.items():
        _choose(page, label, wanted)
    if picture.keys:
        page.focus("main canvas[tabindex]")
        for key in picture.keys:
            page.keyboard.press(key)
    # What lies below the window is taken, too.
    page.set_viewport_size({"width": _WIDTH, "height": 2600})
    _drawn(page)
    box = page.locator("main").bounding_box()
    bottom = page.eval_on_selector_all("main *", "all => Math.max(...all.map(e => e.getBoundingClientRect().bottom))")
    left, top = (0, 0) if picture.whole else (box["x"], box["y"])
    clip = {"x": left, "y": top, "width": _WIDTH - left, "height": min(bottom + 16 - top, picture.height)}
    data: bytes = page.screenshot(clip=clip)
    page.set_viewport_size({"width": _WIDTH, "height": 900})
    return data


def draw(traces: Mapping[str, Path], out: Path = PICTURES, shown: Sequence[Picture] = SHOWN) -> list[str]:
    """Take the pictures whose traces are there. Returns what is wrong, a line each: too large, or not taken.

    traces: folders by name.
    """
    out.mkdir(parents=True, exist_ok=True)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="gallery_") as name, _browser() as browser:
        pages: dict[tuple[str, ...], Path] = {}
        for picture in shown:
            missing = [trace for trace in picture.traces if trace not in traces]
            if missing:
                wrong.append(f"{picture.path}: no trace {', '.join(missing)}")
                continue
            if picture.traces not in pages:
                pages[picture.traces] = Path(name) / f"{'_'.join(picture.traces)}.html"
                write_page([traces[trace] for trace in picture.traces], pages[picture.traces])
            with _opened(browser, pages[picture.traces]) as page:
                data = _small(_taken(page, picture))
            (out / picture.path).write_bytes(data)
            print(f"{picture.path}: {len(data):,} bytes")
            if len(data) > MOST_PICTURE_BYTES:
                wrong.append(f"{picture.path}: {len(data):,} bytes, at most {MOST_PICTURE_BYTES:,}")
    total = sum(path.stat().st_size for path in out.iterdir())
    if total > MOST_BYTES:
        wrong.append(f"{out}: {total:,} bytes, at most {MOST_BYTES:,}")
    return wrong
