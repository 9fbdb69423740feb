"""Whether install() and trace() work in notebooks: results as without them, records as the command's.

    python3 -m bench.notebooks record [--out FILE] [--only NAME …]     on a GPU, with PyTorch, Triton, CuPy and JAX
    python3 -m bench.notebooks judge [--out FILE]                      recomputes the verdicts

Needs the packages jupyter_client and ipykernel. Each workload has two steps, the second with kernels that the first has
not loaded. It runs as a program without and with the command neutrino, and in the kernels of notebooks, which
jupyter_client drives: without Neutrino, with install() before the framework is imported, with install() after the first
step, and with trace() alone. Exit status: 0 all good, 1 a verdict is not, 2 the file cannot be judged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.programs import SOURCES, run_program
from bench.road import ROOT, query_gpu
from bench.tree import made_of
from bench.verdicts import Verdict, need, run_checks
from neutrino.tracing import find_traces
from neutrino.tracing.trace import Trace, TraceLaunch

Json = Any

RESULTS = ROOT / "bench" / "results" / "notebooks_h200.json"
PROBE = "gmem_bytes"
WORKLOADS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "PyTorch": ("notebook_torch.py", {}),
    "CuPy": ("notebook_cupy.py", {"CUPY_COMPILE_WITH_PTX": "1"}),
    # XLA keeps PTX in its images only with line information.
    "JAX": ("notebook_jax.py", {"XLA_FLAGS": "--xla_gpu_generate_line_info=true"}),
}
"""By name: the program, whose text is a cell, and its environment."""
TUNED = frozenset({"JAX"})
"""Those whose compiler launches candidates of a kernel, then the fastest ``STEPS`` times: another one in some runs."""
STEPS = 3
EMBEDDED = ("notebook_vector.py", {"NEUTRINO_BENCH_DEVICE": "embedded"})
"""On the embedded device, with the library of ``examples/embedded``."""
_STEPS = "print(digest(first()), digest(second()))"
_BLOCK = """
before = digest(first())
with neutrino.trace(PROBE) as t:
    after = digest(second())
records = digests((kernel.name, kernel.launches) for kernel in t.kernels)
print(before, after, json.dumps([records, t.coverage.probed, t.coverage.launches]))
"""
_INSTALL = f'import neutrino; neutrino.install("{PROBE}", device=device, quiet=True)'
_START = """import json, os
from bench.notebooks import digests
device = os.environ.get("NEUTRINO_BENCH_DEVICE")"""
_LATE = ("before = digest(first())", _INSTALL, _BLOCK.split("\n", 2)[2].replace("PROBE", ""))
NOTEBOOKS: Mapping[str, tuple[str, ...]] = {
    "notebook": ("WORKLOAD", _STEPS),
    "install": (_START, _INSTALL, "WORKLOAD", _BLOCK.replace("PROBE", "")),
    "trace": (_START, "import neutrino", "WORKLOAD", _BLOCK.replace("PROBE", f'"{PROBE}", device=device, quiet=True')),
    "late": (_START, "WORKLOAD", *_LATE),
}
"""Cells, by mode; WORKLOAD is the text of the program."""
MODES = ("plain", "command", *NOTEBOOKS)
BEFORE = ("plain", "command", "notebook", "install")
"""Those in which nothing has used the device before ``install``, which replaces the driver by the embedded device."""
_LIMIT = 150.0


def digests(kernels: Iterable[tuple[str, Iterable[TraceLaunch]]]) -> list[list[str]]:
    """Of each launch, in the order of submission, the kernel's name and a digest of what its maps (what probes save to)
    hold.
    """
    found = []
    for kernel, launches in kernels:
        for launch in launches:
            digest = hashlib.sha256()
            for name, view in sorted(launch.maps.items()):
                digest.update(name.encode() + view.valid().tobytes())
            found.append((int(launch.record["submit_ns"]), kernel, digest.hexdigest()[:16]))
    return [[kernel, digest] for _, kernel, digest in sorted(found)]


def record(neutrino: Sequence[str], only: Sequence[str], library: Path | None) -> Json:
    """Run each workload as a program and in notebooks on the GPU; return the raw samples.

    Workload → mode → the digests of both steps' results and, of probed ones, of the records. library: the folder of the
    library for the embedded device, whose workload then is the only one. SystemExit: a program or a cell failed.
    """
    workloads = {"vector": EMBEDDED} if library else {name: WORKLOADS[name] for name in only or WORKLOADS}
    results: Json = {
        "device": "embedded" if library else query_gpu("name"),
        "driver": "" if library else query_gpu("driver_version"),
        **made_of("notebooks_h200"), "started": int(time.time()), "runs": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="notebooks_", ignore_cleanup_errors=True) as name:
        for workload, (script, extra) in workloads.items():
            runs = results["runs"][workload] = {}
            for mode in BEFORE if library else MODES:
                folder = Path(name) / f"{workload}_{mode}"
                folder.mkdir()
                paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
                if library:
                    extra = {**extra, "NEUTRINO_BENCH_LIBRARY": str(library.resolve() / "libvector.so")}
                environment = {**os.environ, **extra, "XDG_CACHE_HOME": f"{name}/cache", "PYTHONPATH": paths}
                if mode in NOTEBOOKS:
                    runs[mode] = _notebook(mode, (SOURCES / script).read_text(), environment, folder)
                else:
                    runs[mode] = _program(mode, script, environment, folder, neutrino)
                print(f"{workload}, {mode}: {runs[mode]}", file=sys.stderr)
    return results


def _program(mode: str, script: str, environment: Mapping[str, str], folder: Path, neutrino: Sequence[str]) -> Json:
    """Run a workload as a program, plain or (mode "command") under ``neutrino``: digests of its two steps' results and,
    when probed, of the records. Raises SystemExit when it fails.
    """
    argv = [sys.executable, str(SOURCES / script), "run"]
    device = environment.get("NEUTRINO_BENCH_DEVICE")
    if mode == "command":
        options = ["--device", device] if device else []
        argv = [*neutrino, *options, "--tracedir", str(folder / "trace"), "-p", PROBE, *argv]
    elif device:
        argv = [*neutrino, "--device", device, "--tracedir", str(folder), "-p", PROBE, "-k", "none", *argv]
    done = run_program(argv, environment, folder, "program", _LIMIT)
    if done.status != 0:
        raise SystemExit(f"{shlex.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    run: Json = {"results": done.stdout.split()[-2:]}
    if mode == "command":
        (path,) = find_traces(folder / "trace")
        run["records"] = digests((kernel.demangled, kernel.launches()) for kernel in Trace(path).kernels)
    return run


def _notebook(mode: str, workload: str, environment: Mapping[str, str], folder: Path) -> Json:
    """Run a workload in a notebook's kernel, cell by cell.

    mode: one of NOTEBOOKS; workload: the program's text. Returns digests of both steps' results and, of modes that
    record, of the records. Raises SystemExit when a cell fails.
    """
    printed = run_cells(mode, NOTEBOOKS[mode], workload, environment, folder, is_plain=mode == "notebook")
    before, after, *rest = printed.split(" ", 2)
    run: Json = {"results": [before, after]}
    if rest:
        run["records"], run["probed"], run["launches"] = json.loads(rest[0])
    return run


def run_cells(
    mode: str, cells: Sequence[str], workload: str, environment: Mapping[str, str], folder: Path, *, is_plain: bool
) -> str:
    """Run cells in a notebook's kernel, in a folder; return the last line that they printed.

    mode: for messages. workload: the text of the cell that is named WORKLOAD. is_plain: without Neutrino; then the
    embedded device is a driver like another. Raises SystemExit when a cell fails.
    """
    try:
        from jupyter_client.manager import start_new_kernel
    except ImportError:
        raise SystemExit("jupyter_client is not installed: pip install jupyter_client ipykernel") from None
    if is_plain and "NEUTRINO_BENCH_DEVICE" in environment:
        # Without the hook, the embedded device is a driver like another.
        start = "import os\nfrom neutrino.loader.embedded_driver import EmbeddedDevice, stand_in\n"
        start += "os.environ.update(EmbeddedDevice().environment(dict(os.environ)))\n"
        cells = (start + "import ctypes\nctypes.CDLL(str(stand_in()), ctypes.RTLD_GLOBAL)", *cells)
    output: list[str] = []

    def keep(message: Json) -> None:
        """Keep what a cell printed, or the traceback of its error. message: of Jupyter's protocol."""
        if message["msg_type"] == "stream":
            output.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            output.append("\n".join(message["content"]["traceback"]))

    manager, client = start_new_kernel(env=dict(environment), cwd=str(folder))
    try:
        for cell in cells:
            code = workload if cell == "WORKLOAD" else cell
            reply = client.execute_interactive(code, timeout=_LIMIT, output_hook=keep)
            if reply["content"]["status"] != "ok":
                raise SystemExit(f"{mode}: a cell failed:\n{code}\n{''.join(output)[-3000:]}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return "".join(output).strip().splitlines()[-1]


def judge(results: Json) -> list[Verdict]:
    """Check the recorded runs; return a verdict on each workload's results, and on the records of each mode."""
    found = []
    for workload in results["runs"] if results["device"] == "embedded" else WORKLOADS:
        runs = results["runs"].get(workload, {})
        modes = BEFORE if results["device"] == "embedded" else MODES
        checks = [("results", partial(_results, runs, modes))]
        checks += [(mode, partial(_records, runs, mode, workload in TUNED)) for mode in modes[3:]]
        found += run_checks([(f"{workload}: {title}", check) for title, check in checks])
    return found


def _results(runs: Json, modes: Sequence[str]) -> str:
    """Check that a workload computed the same in all modes. Returns a line for the verdict; raises BrokenError (by
    ``need``)."""
    need(tuple(runs) == tuple(modes), f"runs are {', '.join(runs) or 'none'}")
    outputs = {tuple(run["results"]) for run in runs.values()}
    need(len(outputs) == 1, f"{len(outputs)} different results")
    return f"the same in {len(runs)} runs"


def _records(runs: Json, mode: str, is_tuned: bool) -> str:
    """Check that a notebook's block recorded what the command recorded of the program's last launches.

    is_tuned: whether the workload is one of ``TUNED``, whose compiler tries several kernels. Raises BrokenError (by
    ``need``).
    """
    need(mode in runs, "no run")
    run = runs[mode]
    count = len(run["records"])
    need(count == run["probed"] and count >= 3, f"{count} launches recorded, {run['probed']} probed")
    expected = runs["command"]["records"][-count:]
    if not is_tuned:
        need(run["records"] == expected, "other records than the command's")
        return f"{count} launches recorded, as by the command; {run['probed']} of {run['launches']} probed in the block"
    *tried, first, second, third = run["records"]
    need(tried == expected[:-STEPS], "other records of the candidates than the command's")
    need(first == second == third and first in tried, "the last launches are those of no candidate")
    return f"{count} launches recorded, as by the command; {run['probed']} of {run['launches']} probed in the block"


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add this bench's options to the command line."""
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=[], help="workloads; all by default")
    parser.add_argument(
        "--embedded", type=Path, metavar="FOLDER", help="on the embedded device: the folder of libvector.so, which "
        "make -C examples/embedded builds",
    )  # fmt: skip


main = Bench(
    "notebooks", RESULTS, ("device", "driver", "runs"),
    lambda options, neutrino: record(neutrino, options.only, options.embedded), judge, add=_add_options,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
