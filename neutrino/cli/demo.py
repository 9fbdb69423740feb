"""``make demo``: what a probe does to a kernel, shown on one that ships with Neutrino. Needs no GPU."""

from __future__ import annotations

import difflib
import json
import sys
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from neutrino.entry import read_entry
from neutrino.errors import NeutrinoError
from neutrino.patch import patch_image
from neutrino.probing.selection import Selection
from neutrino.probing.toml import load_probes
from neutrino.resources import tool_path
from neutrino.toolchain import find_assembler

ARCH = "sm_90"
PROBES = ("block_sched", "gmem_bytes")


def main() -> int:
    """Print it; 2 when the assembler is missing or refuses."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    image = tool_path("saxpy.ptx").read_bytes()
    try:
        entry = patch_image(
            image,
            load_probes(PROBES),
            ARCH,
            selection=Selection((), ()),
            assembler=find_assembler(),
            key=bytes(32),
        )
    except NeutrinoError as error:
        print(f"neutrino-demo: {error}", file=sys.stderr)
        return 2
    kernel = read_entry(entry, "demo").kernels[0]
    manifest = json.loads(kernel.files["manifest.json"])
    original, probed = (
        kernel.files[name].decode("latin-1").splitlines() for name in ("original.ptx", "probed.ptx")
    )
    console.print(
        f"[bold]{kernel.name}[/bold], a kernel in PTX, with the probes {' and '.join(PROBES)} ({ARCH})\n"
    )
    console.print(_sites(manifest))
    console.print("\nThe probed text, as a difference to the original:")
    difference = "\n".join(list(difflib.unified_diff(original, probed, "original", "twin", n=2, lineterm="")))
    console.print(
        Syntax(difference.expandtabs(4), "diff", background_color="default", word_wrap=True)
        if console.is_terminal
        else difference.expandtabs(4),
        markup=False,
    )
    console.print()
    console.print(_resources(manifest))
    console.print(
        "\nThe multiplication and the addition are still one FFMA in the twin, so it computes the same bits.\n"
        "On a machine with an NVIDIA GPU the same happens to a running program, and the records are written:\n\n"
        "    neutrino -p block_sched -p gmem_bytes ./program\n"
        "    neutrino-report trace/*\n"
    )
    return 0


def _sites(manifest: dict[str, Any]) -> Table:
    table = Table("probe", "tracepoint", "line", "at", title="sites", title_justify="left", box=None)
    for site in manifest["sites"]:
        table.add_row(site["probe"], site["tracepoint"], str(site["line"]), site["instruction"])
    return table


def _resources(manifest: dict[str, Any]) -> Table:
    table = Table(
        "",
        "original",
        "twin",
        title=f"machine code by {manifest['assembler']}",
        title_justify="left",
        box=None,
    )
    table.add_row("registers", *(str(manifest["registers"][which]) for which in ("original", "twin")))
    table.add_row(
        "spills, bytes",
        *(
            str(manifest["spills"][which]["stores"] + manifest["spills"][which]["loads"])
            for which in ("original", "twin")
        ),
    )
    table.add_row(
        "arithmetic",
        *(
            ", ".join(f"{count} {name}" for name, count in manifest["numerics"][which].items())
            for which in ("original", "twin")
        ),
    )
    return table


if __name__ == "__main__":
    sys.exit(main())
