"""Digests of every twin's text and manifest that the patcher makes of the repository's kernels.

``python -m tests.net`` makes them again and lists what differs from ``twins.json``; ``--renew`` writes that file.
A commit that means to change no twin leaves the file alone; one that does lists why in its message.

Two tables, each SHA-256 by kernel file, probe file and architecture. ``text``: twins as they are written, not
assembled. ``assembled``: with manifests as this ``ptxas`` makes them, and the reasons of refused kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.maker.patcher import patch_image
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.resources import shipped_probes
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.twin_costs import PROBES

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("twins.json")
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a", "sm_100a")
ASSEMBLED = "sm_90"
SHIPPED = tuple(sorted(shipped_probes()[name].relative_to(ROOT).as_posix() for name in PROBES))
OTHERS = tuple(
    sorted(
        path.relative_to(ROOT).as_posix()
        for folder in ("bench/probes", "examples/probes", "tests/fixtures/probes", "tests/loader")
        for path in (ROOT / folder).glob("*.toml")
        if path.name not in {"mistakes.toml", "guide_hip.toml"}
    )
) + tuple(path.relative_to(ROOT).as_posix() for name, path in shipped_probes().items() if name not in PROBES)
"""Probes of tests and measurements, which use what the shipped ones do not, and the library; at one architecture."""
COLUMNS = "tests/loader/logs.toml"
"""Probes with a log of each thread, which has columns on architectures whose lanes do not reduce values."""

_TARGET = re.compile(r"^\.target\s+sm_\w+", re.MULTILINE)
Case = tuple[str, str, str]
"""A kernel file and a probe file, both from the repository's root, and an architecture."""


def kernel_files() -> list[str]:
    """PTX that lies in the repository."""
    folders = ("tests/fixtures/kernels", "tests/embedded", "tests/loader", "examples/embedded")
    return sorted(path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.ptx"))


def text_cases() -> Iterator[Case]:
    """What the table of texts covers."""
    for kernels in kernel_files():
        for arch in ARCHITECTURES:
            yield from ((kernels, probes, arch) for probes in SHIPPED)
        yield from ((kernels, probes, ASSEMBLED) for probes in OTHERS)
        yield (kernels, COLUMNS, "sm_75")


def assembled_cases() -> Iterator[Case]:
    """What the table of assembled twins covers."""
    return ((kernels, probes, ASSEMBLED) for kernels in kernel_files() for probes in SHIPPED)


def text_digest(case: Case) -> str:
    """SHA-256 over the twins' texts and manifests of a case, none of them assembled."""
    return _digest(case, DeviceKind.EMBEDDED, None, retarget=True)


def assembled_digest(case: Case, assembler: Assembler) -> str:
    """SHA-256 over the twins' texts and manifests of a case as a GPU gets them, their figures included."""
    return _digest(case, DeviceKind.GPU, assembler, retarget=False)


@lru_cache
def _loaded(probes: str) -> ProbeSet:
    return load_probes([str(ROOT / probes)])


def _digest(case: Case, device: DeviceKind, assembler: Assembler | None, *, retarget: bool) -> str:
    kernels, probes, arch = case
    text = (ROOT / kernels).read_text("latin-1")
    if retarget:
        text = _TARGET.sub(f".target {arch}", text)
    probe_set = _loaded(probes)
    # Several kernels of a file may be refused for the whole of it; all of that is in the entry.
    try:
        made = read_entry(
            patch_image(
                text.encode("latin-1") + b"\0", probe_set, arch, selection=Selection(),
                assembler=assembler, key=bytes(32), device=device,
            ),
            kernels,
        )  # fmt: skip
    except NeutrinoError as error:
        return hashlib.sha256(f"{type(error).__name__}: {error}".encode()).hexdigest()
    digest = hashlib.sha256()
    for kernel in made.kernels:
        known = (kernel.name, kernel.reason.name, kernel.detail, kernel.twin, kernel.parameters, kernel.variables,
                 kernel.block_offset, kernel.block_size)  # fmt: skip
        digest.update(repr(known).encode())
        for name, data in sorted(kernel.files.items()):
            digest.update(f"{name} {len(data)}\n".encode() + data)
    if assembler is None:
        for image in made.images:
            digest.update(image)
    return digest.hexdigest()


def _text_of(case: Case) -> str:
    return text_digest(case)


def _assembled_of(case: Case) -> str:
    return assembled_digest(case, find_assembler())


def measure(*, assembled: bool) -> dict[str, dict[str, str]]:
    """Both tables, or that of texts alone; keys are ``KERNELS PROBES ARCH``."""
    tables = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        cases = list(text_cases())
        tables["text"] = _table(cases, pool.map(_text_of, cases, chunksize=8))
        if assembled:
            cases = list(assembled_cases())
            tables["assembled"] = _table(cases, pool.map(_assembled_of, cases, chunksize=2))
    return tables


def _table(cases: list[Case], digests: Iterator[str]) -> dict[str, str]:
    return {" ".join(case): digest for case, digest in zip(cases, digests, strict=True)}


def recorded() -> dict[str, dict[str, str]]:
    """The committed tables."""
    known: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return known


def differences(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What is not as recorded, one line per case."""
    known = recorded()
    return [
        f"{table}: {case}: {'differs' if case in known[table] and case in rows else 'new or gone'}"
        for table, rows in found.items()
        for case in sorted(rows.keys() | known[table].keys())
        if rows.get(case) != known[table].get(case)
    ]


def main() -> int:
    """The command line. Exit status 1 when something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.net", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="write twins.json")
    parser.add_argument("--text", action="store_true", help="leave out the assembled twins (minutes)")
    arguments = parser.parse_args()
    found = measure(assembled=not arguments.text)
    if arguments.renew:
        merged = (recorded() if arguments.text and FILE.exists() else {}) | found
        FILE.write_text(json.dumps(merged, indent=0, sort_keys=True) + "\n")
        return 0
    lines = differences(found)
    print(*lines, f"{sum(map(len, found.values()))} cases, {len(lines)} differ", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
