"""Twins' texts and manifests are those that ``twins.json`` records; ``python -m tests.net --renew`` renews it.

``python -m tests.net`` compares all. Here each file of kernels has all probes, and each of those that ship two of four
architectures, by turns.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from zlib import crc32

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from tests.net import (
    ARCHITECTURES,
    Case,
    assembled_cases,
    assembled_digest,
    differences,
    kernel_files,
    recorded,
    text_cases,
    text_digest,
)

_SAMPLE = 6
"""One in so many assembled cases runs; ``python -m tests.net`` runs all."""


@pytest.fixture(scope="module")
def assembler() -> Assembler:
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(str(error))


def _is_compared(case: Case) -> bool:
    *pair, arch = case
    # Probes that have one architecture have another than these.
    return arch not in ARCHITECTURES or (crc32(" ".join(pair).encode()) + ARCHITECTURES.index(arch)) % 2 == 0


def test_each_architecture_meets_all_kernels_and_all_shipped_probes() -> None:
    compared = [case for case in text_cases() if _is_compared(case)]
    met = {(one, arch) for *pair, arch in compared for one in pair}
    assert met == {(one, arch) for *pair, arch in text_cases() for one in pair}
    assert {tuple(pair) for *pair, _ in compared} == {tuple(pair) for *pair, _ in text_cases()}


@pytest.mark.parametrize("kernels", kernel_files())
def test_texts_and_manifests_are_those_recorded(kernels: str) -> None:
    known = recorded()["text"]
    cases = [case for case in text_cases() if case[0] == kernels and _is_compared(case)]
    assert cases
    assert [" ".join(case) for case in cases if text_digest(case) != known[" ".join(case)]] == []


def _sampled() -> list[Case]:
    def number(case: Case) -> int:
        return hashlib.sha256(" ".join(case).encode()).digest()[0]

    return [case for case in assembled_cases() if number(case) % _SAMPLE == 0]


def test_assembled_twins_are_those_recorded(assembler: Assembler) -> None:
    known = recorded()["assembled"]
    cases = _sampled()
    assert len(cases) > len(kernel_files())
    assert [" ".join(case) for case in cases if assembled_digest(case, assembler) != known[" ".join(case)]] == []


def test_the_record_covers_exactly_what_is_there() -> None:
    known = recorded()
    assert set(known["text"]) == {" ".join(case) for case in text_cases()}
    assert set(known["assembled"]) == {" ".join(case) for case in assembled_cases()}


def test_a_changed_probe_moves_its_digests(tmp_path: Path) -> None:
    """The digests see one instruction more."""
    probe = Path(__file__).resolve().parent.parent / "probes" / "block_sched.py"
    text = probe.read_text().replace("nl.cuid()", "nl.cuid() + 1")
    assert text != probe.read_text()
    changed = tmp_path / "probe.py"
    changed.write_text(text)
    kernels = kernel_files()[0]
    case = " ".join((kernels, "probes/block_sched.py", "sm_75"))
    found = text_digest((kernels, str(changed), "sm_75"))
    assert found != recorded()["text"][case]
    assert f"text: {case}: differs" in differences({"text": recorded()["text"] | {case: found}})
