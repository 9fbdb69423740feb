"""docs/library.md: its examples are what the tools print, its prices what the assembler makes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.registers import instructions
from neutrino.errors import ToolMissingError
from neutrino.ptx.instrument.module_twins import probe_module
from neutrino.ptx.text.module import parse
from neutrino.resources import shipped_probes
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.location import find_tool
from neutrino.verification import load_probes
from tests.cli.conftest import Probe
from tests.oracle.assembling import assemble, together

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
LIBRARY = [name for name, path in shipped_probes().items() if path.suffix == ".py"]
KERNELS = (("examples/patterns.ptx", "patterns"), ("examples/embedded/kernels.ptx", "saxpy"))


def prices() -> list[str]:
    """The rows of the table: what each probe adds to each of the kernels."""
    probes = {f"`{name}`": load_probes([name]) for name in LIBRARY}
    probes["`coalescing`, `-D PER_SITE=0`"] = load_probes(["coalescing"], defines={"PER_SITE": 0})
    rows = {name: [name] for name in sorted(probes)}
    for file, kernel in KERNELS:
        text = (ROOT / file).read_text().replace(".target sm_75", ".target sm_80")
        original = _kernels(text)[kernel]
        made = {name: probe_module(parse(text), probes[name], names=[kernel]) for name in rows}
        probed = [name for name in rows if made[name].kernels]
        twins = _kernels(together([made[name] for name in probed]))
        for name in rows:
            if name not in probed:
                rows[name] += ["", "", ""]
                continue
            (twin,) = made[name].kernels
            found = twins[f"{twin.twin_name}_{probed.index(name)}"]
            sites = len({site.number for site in twin.sites if site.number is not None})
            rows[name] += [str(sites), str(found[0] - original[0]), str(found[1] - original[1])]
    return [f"| {' | '.join(row)} |" for row in rows.values()]


def _kernels(text: str) -> dict[str, tuple[int, int]]:
    """Machine instructions and registers of each kernel of a text."""
    cubin, said = assemble(text, quick=False)
    assert cubin, said
    kernels = read_cubin(cubin, "page").kernels.values()
    return {kernel.name: (instructions(kernel.code), kernel.registers) for kernel in kernels}


def test_the_examples(tmp_path: Path) -> None:
    """Each is a part of what the commands of the page print."""
    commands = re.findall(r"^\$ neutrino-probe (.*)", PAGE, re.MULTILINE)
    printed = []
    for command in commands:
        result = subprocess.run(
            [sys.executable, "-m", "neutrino.cli.probe", *shlex.split(command)], cwd=ROOT, capture_output=True,
            text=True, check=False, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "120"},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        printed += [line.rstrip() for line in result.stdout.splitlines()]
    whole = "\n".join(printed)
    examples = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) > len(LIBRARY)
    for example in examples:
        assert f"\n{example}" in f"\n{whole}\n", example


def test_each_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == LIBRARY
    for name in LIBRARY:
        assert f"[`{name}`](#{name})" in PAGE
        for entry in load_probes([name]).maps:
            assert entry.name in PAGE
            assert all(field.name in PAGE for field in entry.fields)


def test_they_are_shown_in_a_kernel(probe: Probe) -> None:
    """With a comment where each was put in; a probe in Python used to end this with a TypeError."""
    said = probe("show", "coalescing", "-D", "PER_SITE=0", ROOT / "examples" / "patterns.ptx", "--text-only")
    assert said.status == 0, said.err
    assert said.out.count("// load: before ld.global | ldu.global") == 2
    assert said.out.count("// store: before st.global") == 1


def test_the_prices() -> None:
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
    assert "\n".join(prices()) in PAGE
