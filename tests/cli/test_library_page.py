"""docs/library.md: its examples are what the tools print, and each probe has a section."""

from __future__ import annotations

import re
from pathlib import Path

from neutrino.verification import load_probes
from tests.cli.conftest import Probe
from tests.cli.library_page import EXAMPLE, FILE, LIBRARY, ROOT, printed

PAGE = FILE.read_text()


def test_the_examples(tmp_path: Path) -> None:
    """Each is a part of what the commands of the page print."""
    whole = "\n".join(["", *printed(PAGE, tmp_path), ""])
    examples = [match[0] for match in EXAMPLE.finditer(PAGE)]
    assert len(examples) >= 4
    for example in examples:
        assert f"\n{example}" in whole, "python -m tests.cli.library_page"


def test_each_has_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == LIBRARY
    for name in LIBRARY:
        for entry in load_probes([name]).maps:
            assert entry.name in PAGE
            assert all(field.name in PAGE for field in entry.fields)


def test_they_are_shown_in_a_kernel(probe: Probe) -> None:
    """With a comment where each was put in, once for several sites; a probe in Python used to end this with a
    TypeError."""
    said = probe("show", "coalescing", "-D", "PER_SITE=0", ROOT / "examples" / "patterns.ptx", "--text-only")
    assert said.status == 0, said.err
    assert said.out.count("// load: before ld.global | ldu.global") == 1
    assert said.out.count("// store: before st.global") == 1

