"""Read every code object of the corpus as text and judge it: ``python -m tests.gcn.corpus_text`` (``make corpus-amd``).

For each code object: does its text assemble to the same bytes, which words are data in it and why, which functions are
refused, and how fast is it. The code objects are those of wheels of PyPI, of ``tests/gcn/kernels.hip`` by clang 19, and
of ``tests/gcn/triton_amd.py`` where a Triton for AMD's GPUs is installed. Writes
``bench/results/corpus_amd.json``: counts and digests alone; ``verdicts`` judges them, here and in the tests. ``--pack``
writes the code objects to a file, for ``--packed`` on another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.recorded import judge_files
from bench.tree import ROOT, made_of
from neutrino.fatbin import Image, ImageKind
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.fatbin.inputs import find_inputs
from neutrino.gcn.code import Function, Instruction, decode, split_target
from neutrino.gcn.listing import Encodings, Notes, layout_of, listing
from neutrino.gcn.llvm import AssemblyError, find_llvm
from tests.corpus.outputs import OUT_HELP, write
from tests.corpus.wheels import WHEELS, CorpusError, Package, fetch
from tests.gcn.packed import pack, unpacked

Json = Any

RESULTS = ROOT / "bench" / "results" / "corpus_amd.json"
BUILT = ROOT / ".corpus" / "amd"
HIP = ROOT / "tests" / "gcn" / "kernels.hip"
TRITON = ROOT / "tests" / "gcn" / "triton_amd.py"
PACKAGES = (
    Package("bitsandbytes==0.50.2", "bitsandbytes-0.50.2-*.whl"),
    Package("torch-scatter-rocm==2.1.2.post7", "torch_scatter_rocm-2.1.2.post7-*.whl"),
    Package("jax-rocm7-plugin==0.10.2", "jax_rocm7_plugin-0.10.2-*.whl"),
)
CLANG = "clang-19"
CLANG_ARCHS = ("gfx906", "gfx90a", "gfx942", "gfx942:sramecc+:xnack-", "gfx1030", "gfx1100", "gfx1201")
TRITON_ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
REQUIRED = frozenset({"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201", "gfx1250"})
LEAST_OBJECTS = 240
LEAST_SPEED = 3e6
"""Bytes of text a second and core, for reading: from the file's bytes to decoded functions."""
CLASSES = {
    "no instruction": "words that decode to none, or to one that the assembler refuses, as padding of zeros does",
    "unused operand": "VOP3 forms on gfx10 and later that have fewer than three operands: what is in the others' bits",
    "unused bits": "bits of s_waitcnt_depctr and buffer_wbl2 that mean nothing",
    "16-bit literal": "v_mov_b16 and a literal of 16 bits, of which the word's upper half is not part",
}
"""Why words are data in a text: all reasons there are."""
_MOST_EXAMPLES = 20
_OPERANDS = 0x07FFFE00
"""Bits of the second and third operand in a VOP3 form's second word."""
_UNUSED = {"s_waitcnt_depctr": 0x80, "buffer_wbl2": 0xC000}
"""Bits of the first word that mean nothing."""


def reason(code: bytes, instruction: Instruction, encoded: bytes) -> str:
    """Return which of CLASSES the words of an instruction are of that are data in a text; "" for none of them.

    code: of the instruction. encoded: what its text assembles to, empty if that is refused.
    """
    if not encoded:
        return "no instruction"
    if len(code) != len(encoded):
        return ""
    differences = [
        int.from_bytes(code[at : at + 4], "little") ^ int.from_bytes(encoded[at : at + 4], "little")
        for at in range(0, len(code), 4)
    ]
    first, second, *rest = [*differences, 0]
    if first == 0 and second and second & ~_OPERANDS == 0 and not any(rest) and instruction.mnemonic.startswith("v_"):
        return "unused operand"
    if first and first & ~_UNUSED.get(instruction.mnemonic, 0) == 0 and not second and not any(rest):
        return "unused bits"
    if instruction.mnemonic.startswith("v_mov_b16") and first == 0 and second & 0xFFFF == 0 and not any(rest):
        return "16-bit literal"
    return ""


@dataclass
class Tally:
    """Counts over the code objects of one source and processor. digest: over their bytes, in order. text_bytes,
    seconds: of the decoded instructions' texts, and of reading and decoding them. assembled: seconds of writing the
    text and assembling it."""

    objects: int = 0
    identical: int = 0
    functions: int = 0
    kernels: int = 0
    instructions: int = 0
    code_bytes: int = 0
    text_bytes: int = 0
    seconds: float = 0.0
    assembled: float = 0.0
    data: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    digest: Any = field(default_factory=hashlib.sha256)

    def document(self) -> dict[str, Json]:
        """Return the counts for JSON."""
        counts = {name: value for name, value in vars(self).items() if name not in ("data", "refused", "digest")}
        counts |= {"seconds": round(self.seconds, 3), "assembled": round(self.assembled, 3)}
        return counts | {"data": dict(self.data), "refused": dict(self.refused), "digest": self.digest.hexdigest()}


class Corpus:
    """What is counted over all code objects: a Tally for each source and processor."""

    def __init__(self) -> None:
        """Find AMD's LLVM. Raises ToolMissingError without one."""
        self.llvm = find_llvm()
        self._encodings = Encodings(self.llvm)
        self.tallies: dict[tuple[str, str], Tally] = {}

    def add(self, data: bytes, source: str, name: str) -> None:
        """Read a code object, write its text and assemble it. source: where it is from. name: for messages."""
        begin = time.process_time()
        found = code_object_functions(data, name, unnamed=True)
        processor, features = split_target(found.target)
        module = decode(found.functions, processor, features, self.llvm)
        decoded = time.process_time()
        tally = self.tallies.setdefault((source, processor), Tally())
        tally.digest.update(hashlib.sha256(data).digest())
        tally.objects += 1
        tally.seconds += decoded - begin
        layout = layout_of(found.functions, found.target)
        lines = listing(module.functions, layout, self._encodings, Notes(symbols=found.variables))
        _, flags = layout.features
        code = b"".join(function.code for function in module.functions)
        try:
            tally.identical += self.llvm.assemble("\n".join(lines), processor, flags) == code
        except AssemblyError as error:
            tally.unexplained.append(f"{name}: {error}")
        tally.assembled += time.process_time() - decoded
        tally.code_bytes += len(code)
        for function in module.functions:
            self._count(tally, function, processor, flags)

    def _count(self, tally: Tally, function: Function, processor: str, features: str) -> None:
        """Count a function's instructions, and why some are data in the text."""
        tally.functions += bool(function.name)
        tally.kernels += function.is_kernel
        tally.instructions += len(function.instructions)
        if function.refused:
            tally.refused[function.refused.split(" at ")[0]] += 1
        sizes = {row.text: row.size for row in function.instructions if row.text}
        encoded = self._encodings.of(sizes, processor, features)
        literals = {at - 4 for row in function.literals for at in (row.low, row.high)}
        for row in function.instructions:
            tally.text_bytes += len(row.text) + 1
            code = function.code[row.offset : row.end]
            if encoded.get(row.text) == code or row.target is not None or row.offset in literals:
                continue
            why = reason(code, row, encoded.get(row.text, b""))
            tally.data[why or "unexplained"] += 1
            if not why and len(tally.unexplained) < _MOST_EXAMPLES:
                tally.unexplained.append(f"{function.name}: {row.text}: {code.hex(' ', 4)}")


def of_wheels(wheels: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects of PACKAGES: source, name and bytes. Raises CorpusError for a wheel that cannot be had."""
    for package in PACKAGES:
        for name, image in code_objects_in(fetch(package, wheels)):
            yield package.requirement, name, image.data


def code_objects_in(wheel: Path) -> Iterator[tuple[str, Image]]:
    """Yield the code objects of a wheel, with their names, which begin with the wheel's. Raises CorpusError for what
    cannot be read."""
    for input_ in find_inputs([str(wheel)], _raise, lambda _: None):
        file = input_.name.removeprefix(f"{wheel.parent}/")
        for container in input_.read(input_.data(), search_data=True):
            for image in container.images:
                if image.kind is ImageKind.CODE_OBJECT:
                    yield f"{file}: {container.index}.{image.index}", image


def _raise(name: str, error: Exception) -> None:
    """Raise CorpusError for an input that cannot be read."""
    raise CorpusError(f"{name}: {error}") from error


def of_clang(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects that clang makes of HIP: each architecture, level and version, and waves of 64 lanes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, ...]] = []
    rows += [
        (arch, f"-O{level}", f"-mcode-object-version={version}")
        for arch in CLANG_ARCHS for level in range(4) for version in (4, 5, 6)
    ] + [(arch, "-O2", "-mwavefrontsize64") for arch in ("gfx1030", "gfx1100", "gfx1201")]  # fmt: skip
    rows += [(arch, "-O2", "-g", "-mllvm", "-amdgpu-kernarg-preload-count=8") for arch in ("gfx90a", "gfx942")]
    for arch, *options in rows:
        path = folder / f"{'_'.join((arch, *options)).replace(':', '_')}.hsaco"
        argv = [CLANG, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-w",
                f"--offload-arch={arch}", *options, HIP.name, "-o", str(path)]  # fmt: skip
        subprocess.run(argv, cwd=HIP.parent, check=True)
        yield CLANG, path.name, path.read_bytes()


def of_triton(python: Path, folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects that Triton makes. python: of the environment that it is installed in."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([python, TRITON, folder, *TRITON_ARCHS], check=True)
    for path in sorted(folder.glob("*.hsaco")):
        yield "triton", path.name, path.read_bytes()


def corpus(triton: Path | None, wheels: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield the code objects of all sources: source, name and bytes. triton: Python of an environment with Triton;
    None: without its kernels. wheels: the folder where the wheels are, or go."""
    yield from of_clang(BUILT / "clang")
    if triton is not None:
        yield from of_triton(triton, BUILT / "triton")
    yield from of_wheels(wheels)


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    rows: Sequence[Json] = results["rows"]
    objects = sum(row["objects"] for row in rows)
    identical = sum(row["identical"] for row in rows)
    text, seconds = sum(row["text_bytes"] for row in rows), sum(row["seconds"] for row in rows)
    archs = {row["processor"] for row in rows}
    classes = {why for row in rows for why in row["data"]}
    refused = sum(sum(row["refused"].values()) for row in rows)
    functions = sum(row["functions"] for row in rows)
    return [
        (f"{objects} code objects, at least {LEAST_OBJECTS}", objects >= LEAST_OBJECTS),
        (f"{identical} of {objects} texts assemble to the same bytes", identical == objects),
        (f"for {', '.join(sorted(archs))}", archs >= REQUIRED),
        (f"words are data for reasons of the list alone: {', '.join(sorted(classes))}", classes <= set(CLASSES)),
        (f"{refused} of {functions} functions are refused", refused * 100 <= functions),
        (f"{text / 1e6:.0f} MB of text at {text / seconds / 1e6:.1f} MB a second", text / seconds >= LEAST_SPEED),
    ]


def table(results: Mapping[str, Json]) -> str:
    """Return recorded results as a table in Markdown, with a row for each source."""
    lines = ["| source | processors | code objects | kernels | instructions | words kept as data |", "|" + " --- |" * 6]
    for source in dict.fromkeys(row["source"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["source"] == source]
        counts = Counter[str]()
        for row in rows:
            counts.update(row["data"])
        data = ", ".join(f"{why} {count:,}" for why, count in sorted(counts.items())) or "none"
        objects, kernels, instructions = (
            sum(row[key] for row in rows) for key in ("objects", "kernels", "instructions")
        )
        lines.append(f"| {source} | {len(rows)} | {objects} | {kernels:,} | {instructions:,} | {data} |")
    return "\n".join(lines)


def print_verdicts(found: Sequence[tuple[str, bool]]) -> int:
    """Print verdicts: what must hold, in words, and whether it does. Returns the exit status: 0 when all hold, else 1.
    """
    for text, holds in found:
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(holds for _, holds in found) else 1


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def record(sources: Iterable[tuple[str, str, bytes]]) -> dict[str, Json]:
    """Read all code objects; return the results."""
    corpus = Corpus()
    for number, (source, name, data) in enumerate(sources):
        if number % 50 == 0:
            print(f"{number} code objects; {source}", file=sys.stderr)
        corpus.add(data, source, name)
    rows = [{"source": source, "processor": processor, **tally.document()}
            for (source, processor), tally in sorted(corpus.tallies.items())]  # fmt: skip
    return {**made_of("corpus_amd"), "llvm": corpus.llvm.identity, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the corpus and judge it; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m tests.gcn.corpus_text", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and read nothing")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="where the wheels are, or go")
    parser.add_argument("--triton", type=Path, metavar="PYTHON", help="of an environment with Triton for AMD's GPUs")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the code objects to it, and judge nothing")
    parser.add_argument("--packed", type=Path, metavar="FILE", help="the code objects that --pack wrote")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    options = parser.parse_args(arguments)
    if options.judge:
        return judge_files([options.out or RESULTS], "make corpus-amd RECORD=1", ["rows"], say)
    if options.packed is None and shutil.which(CLANG) is None:
        print(f"no {CLANG} on PATH", file=sys.stderr)
        return 2
    try:
        found = corpus(options.triton, options.wheels) if options.packed is None else unpacked(options.packed)
        if options.pack is not None:
            pack(found, options.pack)
            return 0
        results = record(found)
    except (CorpusError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    write(options.out, RESULTS, results)
    print(table(results))
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
