"""Source lines of PTX that a cubin keeps, against those of the text that ``ptxas`` was given."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from neutrino.backend.ptx_source import DEBUG_SECTION, find_source
from neutrino.errors import ToolMissingError
from neutrino.fatbin import read_container
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.lines import SECTION, SOURCE_SECTION
from neutrino.sass.source_lines import with_source_lines
from neutrino.toolchain.tool_choice import find_assembler

TRITON = Path(__file__).parents[1] / "fixtures" / "kernels" / "triton"
FILES = ("/somewhere/ker nel.py", r"b\303\274.py")
"""As compilers write them: the second is bü.py."""
MEMORY = re.compile(r"(?:@!?%\w+\s+)?(?:ld|st|atom|red)\.(?:global|shared)")


def with_known_lines(text: str) -> str:
    """The text with a ``.loc`` before each second instruction, of two files in turn, which have no line in common:
    ``ptxas`` does not see a change of the file alone."""
    lines, number = [], 0
    for line in text.split("\n"):
        if line.startswith("\t") and line.rstrip().endswith(";") and not line.lstrip().startswith("."):
            if number % 2 == 0:
                lines.append(f"\t.loc\t{1 + number // 2 % 2} {100 + number // 6 + number // 2 % 2 * 5000} {number % 9}")
            number += 1
        lines.append(line)
    return "\n".join([*lines, *(f'\t.file\t{at} "{path}"' for at, path in enumerate(FILES, 1)), ""])


def places(text: str) -> list[tuple[str, tuple[str, int] | None]]:
    """Each instruction of a text with what its ``.loc`` says, by a reading of its own."""
    place, found = None, []
    for line in (line.strip() for line in text.split("\n")):
        if match := re.match(r"\.loc\s+(\d+)\s+(\d+)", line):
            place = (match[1], int(match[2])) if int(match[2]) else None
        elif line.endswith(";") and not line.startswith("."):
            found.append((" ".join(line.split()), place))
    files = dict(re.findall(r'\.file\s+(\d+)\s+"(.*)"', text))
    return [(instruction, place and (files[place[0]], place[1])) for instruction, place in found]


@pytest.mark.parametrize("name", ["softmax_sm_90", "matmul_bf16_sm_90"])
def test_lines_are_those_of_the_text(name: str) -> None:
    text = with_known_lines((TRITON / f"{name}.ptx").read_text())
    arch = re.search(r"\.target (sm_\w+)", text)
    assert arch
    try:
        cubin = find_assembler().assemble(text, arch[1], ("-lineinfo",)).cubin
    except ToolMissingError as error:
        pytest.skip(str(error))
    kept = read_cubin(cubin, "x").debug_ptx
    assert kept is not None
    assert not re.search(r"\.loc\s", kept)
    restored = with_source_lines(kept, cubin, "x")
    assert len(kept.split("\n")) <= len(restored.split("\n")) <= len(kept.split("\n")) + len(FILES) + 1
    told, found = places(text), places(restored)
    assert [instruction for instruction, _ in found] == [instruction for instruction, _ in told]
    outcomes: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for (instruction, true), (_, place) in zip(told, found, strict=True):
        outcome = "same" if place == true else "wrong" if place else "none"
        outcomes[bool(MEMORY.match(instruction))][outcome] += 1
    assert not outcomes[True]["wrong"] + outcomes[False]["wrong"]
    assert outcomes[True]["same"] > 0.9 * outcomes[True].total() > 0
    assert outcomes[False]["same"] > 0.6 * outcomes[False].total()

    source = find_source(read_container(cubin, "x"), arch[1])
    assert (source.text, source.found) == (restored, DEBUG_SECTION)
    find_assembler().assemble(restored, arch[1], ("-lineinfo",))

    random = np.random.default_rng(1)
    for section in (open_cubin(cubin, "x").section(table) for table in (SECTION, SOURCE_SECTION)):
        assert section
        for _ in range(40):
            changed = bytearray(cubin)
            for at in random.integers(section.offset, section.offset + section.size, 3).tolist():
                changed[at] = int(random.integers(256))
            written = with_source_lines(kept, bytes(changed), "x").split("\n")
            body = kept[: kept.index("{")].count("\n")
            for number, (line, other) in enumerate(zip(kept.split("\n"), written, strict=False)):
                assert line == other or (not line.strip() and number > body and re.match(r"\t\.loc\t\d+ \d+ 0$", other))
