"""Real libraries of others, whole: read, extracted, patched and loaded (``make check-corpus``).

    python -m tests.corpus.real_libraries [--only TEXT] [--wheels FOLDER] [--out FILE]

Downloads the wheels of PACKAGES once (pip resumes and checks them), goes through every library in them, prints a table
and writes ``build/check_corpus.json``: counts and digests, nothing of the libraries themselves; says how they differ
from those that are recorded. ``--out bench/results/check_corpus.json`` records them. Exit status: 0 when every verdict
is good, 1 otherwise, 2 when a wheel cannot be had.

The judges are NVIDIA's ``cuobjdump`` (an older one, out of Triton's wheel, for files whose oldest architectures the
newest refuses), ``clang-offload-bundler``, and the dynamic loader.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.recorded import load, save
from bench.tree import made_of
from neutrino.errors import FormatError
from neutrino.fatbin import Container, ImageKind, kernel_names, read_file, write_container
from neutrino.patched_files.vendor import vendor_library
from neutrino.sass.resource_usage import resource_usage
from tests.corpus.outputs import OUT_HELP, output, write
from tests.corpus.wheels import WHEELS, CorpusError, Package, fetch, libraries

Json = Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "check_corpus.json"
TRITON = ROOT / ".corpus" / "venv"
BUNDLER = "clang-offload-bundler-19"
LEAST_OF_CTRANSLATE2 = 540
_TOOL_SECONDS = 1200


PACKAGES = (
    Package("ctranslate2==4.8.5", "ctranslate2-4.8.5-*.whl", "sm_90"),
    Package("bitsandbytes==0.45.5", "bitsandbytes-0.45.5-*.whl", "sm_90"),
    Package("bitsandbytes==0.50.2", "bitsandbytes-0.50.2-*.whl", "sm_90"),
    Package("nvidia-curand-cu11==10.3.0.86", "nvidia_curand_cu11-10.3.0.86-*.whl"),
)
COLUMNS = ("file", "containers", "images", "kernels", "identical", "patched", "loads")


def _digest(data: bytes | memoryview) -> str:
    """Return a digest (SHA-256, in hex) of bytes."""
    return hashlib.sha256(data).hexdigest()


def _run(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program, with its output captured as text; a failure is left to the caller.

    Raises subprocess.TimeoutExpired after _TOOL_SECONDS.
    """
    return subprocess.run(list(map(str, argv)), cwd=cwd, capture_output=True, text=True, errors="replace", check=False,
                          timeout=_TOOL_SECONDS)  # fmt: skip


class Judges:
    """NVIDIA's tools of two generations, newest first."""

    def __init__(self) -> None:
        """Find every cuobjdump of this Python's wheels and of Triton's, newest first.

        Raises CorpusError when there is none.
        """
        wheels = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/cuobjdump")
        triton = TRITON.glob("lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")
        self.tools = [*sorted(wheels, reverse=True), *sorted(triton)]
        if not self.tools:
            raise CorpusError("cuobjdump: not in this Python's wheels: pip install nvidia-cuda-cuobjdump")

    def cuobjdump(self, *arguments: str | Path, cwd: Path) -> tuple[str, str]:
        """Run NVIDIA's cuobjdump on a file, the newest first, older ones where a newer no longer takes its
        architectures. Returns what it printed and its release ("12.4"); raises CorpusError when none takes the file.
        """
        said = ""
        for tool in self.tools:
            done = _run(tool, *arguments, cwd=cwd)
            refused = "has been removed" in done.stdout + done.stderr
            if done.returncode == 0 and not refused:
                found = re.search(r"V(\d+\.\d+)", _run(tool, "--version").stdout)
                return done.stdout, found[1] if found else ""
            said = (done.stderr + done.stdout).strip()[-300:]
        raise CorpusError(f"no cuobjdump takes {arguments[-1]}: {said}")


def extraction(file: Path, containers: Sequence[Container], judges: Judges) -> dict[str, Json]:
    """Count the PTX and cubin images of a file that we extract byte for byte as NVIDIA's cuobjdump does.

    A comparison of multisets, since cuobjdump numbers them in its own way.
    """
    kinds = (ImageKind.PTX, ImageKind.CUBIN)
    # Files by themselves in a library's data are not cuobjdump's to find.
    images = [image for one in containers if one.kind == "cuda-fatbin" for image in one.images if image.kind in kinds]
    ours = Counter(_digest(image.data) for image in images)
    if not ours:
        return {"ours": 0, "theirs": 0, "same": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, release = judges.cuobjdump("-all", "-xelf", "all", "-xptx", "all", file, cwd=folder)
        theirs = Counter(_digest(path.read_bytes()) for path in folder.iterdir())
    same = sum((ours & theirs).values())
    return {"ours": ours.total(), "theirs": theirs.total(), "same": same, "tool": f"cuobjdump {release}"}


_FUNCTION = re.compile(r"^ Function ([^\n]+):\n +(REG:.*)$", re.MULTILINE)
_FIGURE = re.compile(r"(REG|STACK|SHARED|LOCAL|CONSTANT\[0\]):(\d+)")


def resources(file: Path, containers: Sequence[Container], judges: Judges) -> dict[str, Json]:
    """Count the kernels of a file whose resources, as we read them, are those of ``cuobjdump -res-usage``, as multisets
    by name."""
    ours: Counter[tuple[str, ...]] = Counter()
    for container in containers:
        for image in container.images:
            if image.kind is ImageKind.CUBIN and container.kind == "cuda-fatbin":
                for function in resource_usage(image.data, file.name).functions:
                    if function.kernel:
                        figures = (function.registers, function.stack, function.shared, function.local,
                                   function.constants.get(0, 0))  # fmt: skip
                        entry = (function.name, *map(str, figures))
                        ours[entry] += 1
    if not ours:
        return {"ours": 0, "same": 0}
    printed, release = judges.cuobjdump("-all", "-res-usage", file, cwd=file.parent)
    theirs: Counter[tuple[str, ...]] = Counter()
    for name, line in _FUNCTION.findall(printed):
        printed_of = dict(_FIGURE.findall(line))
        entry = (name, *(printed_of.get(key, "0") for key in ("REG", "STACK", "SHARED", "LOCAL", "CONSTANT[0]")))
        theirs[entry] += 1
    return {"ours": ours.total(), "same": sum((ours & theirs).values()), "tool": f"cuobjdump {release}"}


def unbundling(containers: Sequence[Container]) -> dict[str, Json]:
    """Count the AMD code objects that we extract byte for byte as clang-offload-bundler does, of those for targets that
    it knows.

    unknown: those for others.
    """
    ours = same = unknown = 0
    for container in containers:
        if container.bundle is None:
            continue
        wanted = {image.identifier: _digest(image.data) for image in container.images}
        compressed = container.bundle.compressed
        # The bundler at hand does not read the newest header: the bundle within is judged.
        plain = compressed.read(0, compressed.size) if compressed is not None else write_container(container)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "bundle").write_bytes(plain)
            outputs: list[Path] = []
            while wanted:
                outputs = [folder / f"{index}.o" for index in range(len(wanted))]
                done = _run(BUNDLER, "--unbundle", "--type=o", f"--input={folder / 'bundle'}",
                            f"--targets={','.join(wanted)}", *(f"--output={output}" for output in outputs),
                            cwd=folder)  # fmt: skip
                refused = re.search(r"Can't find bundles for (.+)$", done.stderr.strip())
                names = re.split(", | and ", refused[1]) if refused else []
                missing = [name.removesuffix("-") for name in names if name.removesuffix("-") in wanted]
                if not missing:
                    break
                unknown += len(missing)
                for name in missing:
                    del wanted[name]
            ours += len(wanted)
            # Of no target that the bundler knows, the outputs are those of a run that was refused.
            same += sum(output.exists() and _digest(output.read_bytes()) == digest
                        for output, digest in zip(outputs, wanted.values(), strict=bool(wanted)))  # fmt: skip
    return {"ours": ours, "same": same, "unknown": unknown, "tool": BUNDLER}


def written(file: Path, containers: Sequence[Container]) -> dict[str, Json]:
    """Count the containers of GPU code in a file that, read and written back, give the same bytes: a test of reader and
    writer."""
    same = 0
    with file.open("rb") as stream:
        for container in containers:
            stream.seek(container.offset)
            same += write_container(container) == stream.read(container.size)
    return {"ours": len(containers), "same": same}


def stand_ins(file: Path, folder: Path) -> Path:
    """Make a folder with stand-ins for the libraries that a file needs and this machine lacks; their functions return
    0.

    The dynamic loader needs the libraries by name, their versions, and the functions that constructors call.
    """
    folder.mkdir(exist_ok=True)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-dW", file).stdout)
    listed = _run("ldd", file).stdout
    missing = [name for name in needed if re.search(rf"{re.escape(name)} => not found", listed)]
    homes: dict[str, str] = {}
    library = ""
    for line in _run("readelf", "-VW", file).stdout.splitlines():
        if found := re.search(r"File: (\S+)", line):
            library = found[1]
        elif found := re.search(r"Name: (\S+) +Flags", line):
            homes[found[1]] = library
    symbols: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in _run("nm", "-D", "--undefined-only", "--with-symbol-versions", file).stdout.splitlines():
        kind, _, name = line.strip().partition(" ")
        name, _, version = name.partition("@")
        home = homes.get(version.lstrip("@"), missing[0] if missing and not version else "")
        if kind == "U" and home in missing:
            symbols[home][version.lstrip("@")].append(name)
    for name in missing:
        versions = [version for version, home in homes.items() if home == name]
        code, script = ["long stand_in(void) { return 0; }"], []
        for version in dict.fromkeys([*versions, *symbols[name]]):
            wanted = symbols[name][version]
            code += [f'__asm__(".globl {symbol}\\n.set {symbol}, stand_in");' for symbol in wanted]
            if version:
                script.append(f"{version} {{ {'global: ' + '; '.join(wanted) + ';' if wanted else ''} }};")
        (folder / "stand_in.c").write_text("\n".join(code) + "\n")
        (folder / "stand_in.map").write_text("\n".join(script) + "\n")
        versioned = [f"-Wl,--version-script={folder / 'stand_in.map'}"] if script else []
        _run("gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", *versioned, "-o", folder / name, folder / "stand_in.c")
    return folder


def loading(file: Path, beside: Path, stubs: Path) -> str:
    """Whether the dynamic loader takes the file, in a process of its own: "loads", or what it said. beside: the folder
    with the wheel's other libraries."""
    program = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_LAZY); print('loads', flush=True); os._exit(0)"
    argv = ["env", f"LD_LIBRARY_PATH={beside}:{stubs}", sys.executable, "-c", program, str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == 0 and done.stdout.strip() == "loads":
        return "loads"
    said = done.stderr.strip().splitlines()
    return said[-1].replace(str(file.parent), "") if said else f"status {done.returncode}"


def patch(file: Path, arch: str, target: Path) -> dict[str, Json]:
    """Patch a library with the ``block_sched`` probe: how many kernels were probed, why others were not, and whether
    ``--check`` and ``--restore`` succeed on the outcome, which is at target.
    """
    command = [sys.executable, "-m", "neutrino.cli.patch"]
    start = time.monotonic()
    done = _run(*command, file, "-p", "block_sched", "--arch", arch, "--json", "-o", target, cwd=ROOT)
    kept: dict[str, Json] = {"exit": done.returncode, "arch": arch, "seconds": round(time.monotonic() - start, 1)}
    if done.returncode in (0, 3):
        kernels = json.loads(done.stdout)["kernels"]
        kept |= {"kernels": len(kernels), "probed": sum(kernel["status"] == "probed" for kernel in kernels),
                 "reasons": dict(Counter(kernel["reason"] for kernel in kernels if kernel["status"] != "probed"))}
    else:
        kept["said"] = done.stderr.strip()[-300:]
    if target.exists():
        kept["check"] = _run(*command, "--check", target, cwd=ROOT).returncode
        restored = target.with_name("restored.so")
        _run(*command, "--restore", target, "-o", restored, cwd=ROOT)
        kept["restored"] = restored.exists() and _digest(restored.read_bytes()) == _digest(file.read_bytes())
        restored.unlink(missing_ok=True)
    return kept


def machine_code(file: Path, judges: Judges) -> str:
    """A digest of everything that cuobjdump disassembles of a file, its name left out."""
    printed, _ = judges.cuobjdump("-sass", file, cwd=file.parent)
    return _digest(printed.replace(str(file), "").encode())


def examine(file: Path, package: Package, judges: Judges, folder: Path) -> dict[str, Json]:
    """Everything that is measured on one library: what is in it, whether what was read of it agrees with NVIDIA's
    tools, what patching it gave, and whether it still loads. folder: for scratch files.
    """
    containers = read_file(file)
    images = [image for container in containers for image in container.images]
    names = [name for image in images for name in kernel_names(image)]
    row: dict[str, Json] = {
        **made_of("check_corpus"), "file": file.name, "package": package.requirement, "size": file.stat().st_size,
        "digest": _digest(file.read_bytes()), "containers": len(containers),
        "images": dict(Counter(image.kind.value for image in images)), "kernels": len(names),
        "distinct": len(set(names)), "identical": {"written": written(file, containers)},
    }  # fmt: skip
    if any(container.kind == "cuda-fatbin" for container in containers):
        row["identical"] |= {"extraction": extraction(file, containers, judges),
                             "resources": resources(file, containers, judges)}  # fmt: skip
    if any(container.bundle is not None for container in containers):
        row["identical"]["unbundled"] = unbundling(containers)
    stubs = stand_ins(file, folder / "stand-ins")
    row["loads"] = {"original": loading(file, file.parent, stubs)}
    vendor = vendor_library(file)
    if vendor is not None:
        row["patched"] = "vendor"
    elif package.patch and any(container.kind == "cuda-fatbin" for container in containers):
        target = folder / "patched" / file.name
        target.parent.mkdir(exist_ok=True)
        row["patched"] = patch(file, package.patch, target)
        if target.exists():
            row["loads"]["patched"] = loading(target, file.parent, stubs)
            if "ctranslate2" in file.name:
                row["machine_code"] = {"original": machine_code(file, judges), "patched": machine_code(target, judges)}
            target.unlink()
    else:
        row["patched"] = "no CUDA kernels"
    return row


def faults(row: Mapping[str, Json]) -> list[str]:
    """Return what is wrong with the figures of one library, a line each; empty when all is good. row: as ``examine``
    returns it."""
    wrong = []
    for what, counts in row["identical"].items():
        total = counts.get("theirs", counts["ours"])
        if not counts["same"] == counts["ours"] == total:
            wrong.append(f"{what}: {counts['same']} of {counts['ours']} the same, {total} by the tool")
    patched = row["patched"]
    if isinstance(patched, dict):
        if patched["exit"] not in (0, 3):
            wrong.append(f"patching ended with {patched['exit']}: {patched.get('said', '')}")
        elif patched["exit"] == 0:
            if patched.get("check") != 0:
                wrong.append(f"--check says {patched.get('check')}")
            if not patched.get("restored"):
                wrong.append("--restore does not give the original")
            if row["loads"]["original"] == "loads" != row["loads"].get("patched"):
                wrong.append(f"the patched file: {row['loads'].get('patched')}")
        if "ctranslate2" in row["file"] and row["distinct"] >= LEAST_OF_CTRANSLATE2:
            if not patched.get("probed") == patched.get("kernels", 0) >= LEAST_OF_CTRANSLATE2:
                wrong.append(f"{patched.get('probed')} of {patched.get('kernels')} kernels probed")
            code = row["machine_code"]
            if code["original"] != code["patched"]:
                wrong.append("cuobjdump -sass of the originals differs after patching")
    return wrong


def judge(result: Mapping[str, Json]) -> list[str]:
    """Return everything that is wrong with recorded results, a line each: libraries' faults, and packages that are
    missing."""
    wrong = [f"{row['file']}: {fault}" for row in result["rows"] for fault in faults(row)]
    present = {row["package"] for row in result["rows"]}
    wanted = [package.requirement for package in PACKAGES]
    wrong += [f"{requirement}: not in the results" for requirement in wanted if requirement not in present]
    if not any("ctranslate2" in row["file"] and "machine_code" in row for row in result["rows"]):
        wrong.append("no library of ctranslate2 was patched and disassembled")
    return wrong


def table(rows: Iterable[Mapping[str, Json]]) -> str:
    """Return the libraries' figures as a table for people."""
    lines = [COLUMNS]
    for row in rows:
        counts = row["identical"].values()
        identical = "yes" if not [fault for fault in faults(row) if "the same" in fault] else "NO"
        same = f"{identical} ({sum(count['same'] for count in counts):,})"
        patched = row["patched"]
        if isinstance(patched, dict):
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in patched.get("reasons", {}).items())
            patched = f"{patched.get('probed', 0):,} of {patched.get('kernels', 0):,}"
            patched += f" ({reasons})" if reasons else ""
        loads = " → ".join("yes" if said == "loads" else "no" for said in row["loads"].values())
        lines.append((row["file"], f"{row['containers']:,}", f"{sum(row['images'].values()):,}", f"{row['kernels']:,}",
                      same, patched, loads))  # fmt: skip
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Go through the libraries of all wheels, keep their figures and print the verdicts.

    Returns 0 when all is good, 1 when not, 2 when a wheel or tool cannot be had.
    """
    parser = argparse.ArgumentParser(prog="tests.corpus.real_libraries", description="Real libraries: read, load.")
    parser.add_argument("--only", default="", help="libraries whose file name contains this")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="where wheels are and are put")
    parser.add_argument("--out", type=Path, default=output(RESULTS), help=f"{OUT_HELP}; other libraries' rows are kept")
    options = parser.parse_args(arguments)
    rows: dict[str, dict[str, Json]] = {}
    if options.only:
        kept = load(options.out if options.out.exists() else RESULTS)["rows"]
        rows = {f"{row['package']} {row['file']}": row for row in kept}
    try:
        judges = Judges()
        for package in PACKAGES:
            wheel = fetch(package, options.wheels)
            with tempfile.TemporaryDirectory(prefix="corpus_") as name:
                folder = Path(name)
                for file in list(libraries(wheel, folder)):
                    if options.only not in file.name:
                        continue
                    try:
                        if not read_file(file):
                            continue
                    except FormatError:
                        continue
                    start = time.monotonic()
                    row = examine(file, package, judges, folder)
                    rows[f"{package.requirement} {file.name}"] = row
                    print(f"{file.name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    save(options.out, {"rows": list(rows.values())})
    except CorpusError as error:
        print(f"check-corpus: {error}", file=sys.stderr)
        return 2
    write(options.out, RESULTS, {"rows": list(rows.values())})
    print(table(rows.values()))
    wrong = judge({"rows": list(rows.values())})
    for fault in wrong:
        print(f"BAD  {fault}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
