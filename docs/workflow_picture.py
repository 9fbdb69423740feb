"""The picture of how a probed run works: ``python docs/workflow_picture.py > docs/pictures/workflow.svg``."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 300
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.title { font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
rect { fill: #f6f8fa; stroke: #d1d9e0 }
.ours { fill: #ddf4ff; stroke: #54aeff }
path { fill: none; stroke: #59636e; marker-end: url(#arrow) }
#arrow path { fill: #59636e; stroke: none; marker-end: none }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d }
  .ours { fill: #0c2d6b; stroke: #388bfd } path { stroke: #9198a1 } #arrow path { fill: #9198a1 }
}"""


@dataclass(frozen=True)
class Box:
    """A box with a title and lines below it. ours: part of Neutrino, and not of the program or the machine."""

    left: int
    top: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...]
    ours: bool = True

    def svg(self) -> str:
        """The box's elements."""
        middle = self.left + self.width // 2
        first = self.top + (self.height - 19 * len(self.lines)) // 2 + 4
        kind = ' class="ours"' if self.ours else ""
        place = f'x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}"'
        parts = [f'<rect{kind} {place} rx="8"/>', _text(middle, first, self.title, "title")]
        parts += [_text(middle, first + 19 * (number + 1), line, "small") for number, line in enumerate(self.lines)]
        return "\n".join(parts)


BOXES = (
    Box(10, 20, 170, 92, "your program", ("CUDA, Triton, PyTorch,", "JAX, CuPy", "unchanged"), ours=False),
    Box(250, 20, 170, 92, "hook", ("in front of the driver:", "chooses the original", "or its twin")),
    Box(490, 20, 170, 92, "driver and GPU", ("or the embedded device,", "on the CPU"), ours=False),
    Box(10, 190, 170, 92, "probes", ("one line, Python, TOML;", "all verified before", "anything starts")),
    Box(250, 190, 170, 92, "twin maker", ("puts probes into the PTX,", "assembles, checks the", "arithmetic, caches")),
    Box(490, 190, 170, 92, "trace", ("records, coverage,", "reasons, source lines")),
    Box(730, 190, 120, 92, "answers", ("report, pictures,", "Python, CSV, JSON")),
)
ARROWS = (
    ("M180 66 H242", 212, 56, "kernels"),
    ("M420 66 H482", 452, 56, "launches"),
    ("M310 112 V182", 278, 152, "kernel"),
    ("M360 190 V120", 386, 152, "twin"),
    ("M180 236 H242", 0, 0, ""),
    ("M575 112 V182", 610, 152, "records"),
    ("M660 236 H722", 0, 0, ""),
)


def _text(x: int, y: int, text: str, kind: str) -> str:
    """A line of text around x."""
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def picture() -> str:
    """The picture as SVG; its colours follow those of the reader's page."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>How a probed run works</title>",
        f"<style>\n{_STYLE}\n</style>",
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker>',
        *(box.svg() for box in BOXES),
    ]
    for path, x, y, text in ARROWS:
        parts.append(f'<path d="{path}"/>')
        if text:
            parts.append(_text(x, y, text, "small"))
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    print(picture())
