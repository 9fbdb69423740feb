"""Programs as users have them, with probes on a GPU: forms of launches, frameworks, ranks, MPS, profilers.

    python3 -m bench.compatibility record [--out FILE] [--only CASE …]    on a GPU
    python3 -m bench.compatibility judge [--out FILE]      recomputes the verdicts; exit 0 good, 1 not

What a machine lacks (a second GPU, MPS, a profiler) is recorded as missing, with the reason. ``--only`` records some
cases again into a file that is there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.command_line import Bench
from bench.probed import environment, launches, made_with, probed, recorded, run, uncovered, with_probe
from bench.programs import find_cuda_tool
from bench.recorded import load, save
from bench.tree import ROOT
from bench.verdicts import Verdict

Json = Any

WORKLOADS = ROOT / "bench" / "workloads"
RESULTS = ROOT / "bench" / "results" / "compatibility_h200.json"
FORMS = ("persistent", "cooperative", "streamk", "clusters", "dependent", "extra")
PROBES = ("gmem_bytes", "inst_count")
FRAMEWORKS = {"jax": ["jax_step.py", "20"], "cupy": ["cupy_mix.py", "4"]}
PROFILERS = {
    "ncu": ["ncu", "--metrics", "smsp__inst_executed.sum", "--launch-count", "2"],
    "compute-sanitizer": ["compute-sanitizer"],
}
MOST_UNCOVERED = 0.02


class MissingError(Exception):
    """The machine lacks what a case needs; the message says what."""


def _python(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a Python workload of the bench with these arguments."""
    return [sys.executable, str(WORKLOADS / name), *arguments]


def _nvcc(name: str, folder: Path) -> Path:
    """Compile the CUDA workload of that name for sm_90 into folder; the program's path."""
    program = folder / name
    run([str(find_cuda_tool("nvcc")), "-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]",
         str(WORKLOADS / f"{name}.cu"), "-o", str(program)], folder)  # fmt: skip
    return program


def _forms(folder: Path) -> Json:
    """Run each form of launch (cooperative, clusters …) plain and with each probe: what was printed and recorded."""
    program, cases = folder / "forms", {}
    for form in FORMS:
        plain = run([str(program), form], folder).words
        for probe in PROBES:
            words, trace = probed([str(program), form], probe, folder, form)
            cases[f"{form} {probe}"] = {"plain": plain, "probed": words, **trace}
    return cases


def _frameworks(folder: Path) -> Json:
    """Run programs of JAX, CuPy and PyTorch plain and with ``gmem_bytes``: what was printed and recorded.

    JAX runs twice, with CUDA graphs and without.
    """
    cases = {}
    for name, (script, *arguments) in FRAMEWORKS.items():
        plain = run(_python(script, *arguments), folder).words
        words, trace = probed(_python(script, *arguments), "gmem_bytes", folder, name)
        cases[name] = {"plain": plain, "probed": words, **trace}
    # XLA makes CUDA graphs of its own; once without, to compare the sums.
    flags = f"{environment(folder)['XLA_FLAGS']} --xla_gpu_enable_command_buffer="
    command = ["env", f"XLA_FLAGS={flags}"]
    plain = run([*command, *_python(*FRAMEWORKS["jax"])], folder).words
    words, trace = probed([*command, *_python(*FRAMEWORKS["jax"])], "gmem_bytes", folder, "jax_launches")
    cases["jax launches"] = {"plain": plain, "probed": words, **trace}
    plain = run(_python("torch_profiled.py"), folder).words
    words, trace = probed(_python("torch_profiled.py"), "gmem_bytes", folder, "profiled")
    cases["torch.profiler"] = {"plain": plain, "probed": words, **trace}
    return cases


def _ranks(folder: Path) -> Json:
    """Run a PyTorch program of a process on each GPU, plain and probed.

    Raises MissingError on a machine with one GPU.
    """
    count = int(run(_python_text("import torch; print(torch.cuda.device_count())"), folder).words[0][0])
    if count < 2:
        raise MissingError("one GPU")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command += _python("torch_ranks.py", "60")[1:]
    plain = run(command, folder).words
    words = run(with_probe(command, "gmem_bytes", folder / "ranks"), folder).words
    return {"ranks": count, "plain": sorted(plain), "probed": sorted(words), "traces": _traces(folder / "ranks")}


def _python_text(text: str) -> list[str]:
    """Return the command that runs a line of Python."""
    return [sys.executable, "-c", text]


def _traces(folder: Path) -> list[Json]:
    """Return what each of the traces below a folder recorded, as plain data; nothing without the folder."""
    from neutrino.tracing import find_traces

    return [recorded(path) for path in find_traces(folder)] if folder.exists() else []


@contextmanager
def _mps(folder: Path) -> Iterator[dict[str, str]]:
    """Start NVIDIA's MPS, through which processes share a GPU, and stop it at the end.

    Yields the environment variables that lead programs to it; raises MissingError where it is not installed.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        raise MissingError("no nvidia-cuda-mps-control")
    variables = {f"CUDA_MPS_{name}_DIRECTORY": str(folder / f"mps_{name}") for name in ("PIPE", "LOG")}
    for path in variables.values():
        Path(path).mkdir()
    run([control, "-d"], folder, more=variables)
    try:
        yield variables
    finally:
        subprocess.run([control], input="quit\n", text=True, env={**os.environ, **variables}, timeout=60, check=False)


def _shared(folder: Path) -> Json:
    """Run two probed processes on one GPU at once, under NVIDIA's MPS: what they printed and recorded, and
    a plain run.
    """
    program = str(folder / "forms")
    with _mps(folder) as variables, ThreadPoolExecutor(2) as both:
        plain = run([program, "extra"], folder, more=variables).words
        command = with_probe([program, "extra"], "gmem_bytes", folder / "mps")
        done = [both.submit(run, command, folder, more=variables) for _ in range(2)]
        words = [each.result().words for each in done]
    return {"plain": plain, "probed": words, "traces": _traces(folder / "mps")}


def _profiler(name: str, folder: Path) -> Json:
    """Run a program under a profiler and Neutrino, each of them around the other.

    name: one of PROFILERS. Raises MissingError where it is not installed.
    """
    if not shutil.which(name):
        raise MissingError(f"no {name}")
    program = [str(folder / "forms"), "clusters"]
    plain = run(program, folder).words
    both = {
        "profiler first": [*PROFILERS[name], *with_probe(program, "gmem_bytes", folder / f"{name}_1")],
        "neutrino first": with_probe([*PROFILERS[name], *program], "gmem_bytes", folder / f"{name}_2"),
    }
    orders = {}
    for order, command in both.items():
        done = run(command, folder)
        orders[order] = {
            "probed": [words for words in done.words if words[:1] in (["launches"], ["result"])],
            "said": [line for line in done.errors if line.startswith("neutrino: ")],
        }
    return {"plain": plain, "orders": orders}


def record(path: Path, only: Sequence[str]) -> Json:
    """Run every case plain and probed; return what they printed and recorded, which is in the file, too, as far as it
    is there. only: these cases; the file's others stay."""
    results: dict[str, Json] = {"missing": {}, "trees": {}}
    if only and path.exists():
        results = load(path)
    results |= made_with("compatibility_h200")
    cases: dict[str, Callable[[Path], Json]] = {
        "forms": _forms, "frameworks": _frameworks, "ranks": _ranks, "mps": _shared,
        **{name: lambda folder, name=name: _profiler(name, folder) for name in PROFILERS},  # type: ignore[misc]
    }  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The programs that several cases run.
        _nvcc("forms", Path(folder))
        for name, case in cases.items():
            if only and name not in only:
                continue
            results["missing"].pop(name, None)
            results["trees"][name] = results["tree"]
            try:
                results[name] = case(Path(folder))
            except MissingError as missing:
                results["missing"][name] = str(missing)
            except (SystemExit, subprocess.TimeoutExpired) as failure:
                results["missing"][name] = f"failed: {failure}"
                print(f"{name}: {failure}", file=sys.stderr)
            # What there is, each time: the machine may be taken away.
            save(path, results)
            print(f"{name}: done", file=sys.stderr, flush=True)
    return results


def _wrong_output(name: str, case: Json) -> Iterator[str]:
    """Yield a message if a program printed other lines with the probe than without, or none. case: plain and probed
    lines."""
    if not case["plain"] or case["plain"] != case["probed"]:
        yield f"{name}: the program's output differs"


def _wrong_trace(name: str, trace: Json) -> Iterator[str]:
    """Yield what is wrong with a recorded trace: it is not complete, or too many launches ran without the probe."""
    if not trace["complete"]:
        yield f"{name}: the trace is not complete"
    if uncovered(trace) > MOST_UNCOVERED:
        yield f"{name}: {uncovered(trace):.1%} of the launches of kernels with PTX ran unprobed"


def verdicts(results: Json) -> list[str]:
    """Return what is wrong with the recorded results, a message each; nothing when all is as it should be."""
    wrong = [f"no {name}" for name in ("tree", "device", "driver") if not results.get(name)]
    wrong += [f"{name}: {reason}" for name, reason in results["missing"].items()]
    for name, case in {**results.get("forms", {}), **results.get("frameworks", {})}.items():
        wrong += _wrong_output(name, case)
        # This twin has less occupancy than the original, which the grid was made for.
        if name != "cooperative inst_count" or set(launches(case)) != {"occupancy"}:
            wrong += _wrong_trace(name, case)
        if name.split()[0] in FORMS and launches(case).total() != int(case["plain"][0][1]):
            wrong.append(f"{name}: {dict(launches(case))} of {case['plain'][0][1]} launches")
    frameworks = results.get("frameworks")
    if frameworks and frameworks["jax"]["totals"] != frameworks["jax launches"]["totals"]:
        wrong.append("jax: the sums with CUDA graphs are not those of launches")
    for name in ("ranks", "mps"):
        if name not in results:
            continue
        case = results[name]
        count = case.get("ranks", 2)
        if any(words != case["plain"] for words in ([case["probed"]] if name == "ranks" else case["probed"])):
            wrong.append(f"{name}: the programs' output differs")
        if len(case["traces"]) != count:
            wrong.append(f"{name}: {len(case['traces'])} traces of {count} processes")
        for trace in case["traces"]:
            wrong += _wrong_trace(name, trace)
    for name in PROFILERS:
        for order, case in results.get(name, {}).get("orders", {}).items():
            wrong += _wrong_output(f"{name}, {order}", {"plain": results[name]["plain"], **case})
            if not case["said"]:
                wrong.append(f"{name}, {order}: Neutrino says nothing")
    return wrong


def judge(results: Json) -> list[Verdict]:
    """Return a verdict on all that was recorded."""
    wrong = verdicts(results)
    return [Verdict("programs", not wrong, "; ".join(wrong) or "all as without probes")]


def table(results: Json) -> str:
    """Return the launches of each case by what became of them, as lines for people."""
    cases = {**results.get("forms", {}), **results.get("frameworks", {})}
    lines = [f"{name:24} {dict(launches(case))}" for name, case in cases.items()]
    lines += [f"{name:24} {dict(launches(trace))}" for name in ("ranks", "mps")
              for trace in results.get(name, {}).get("traces", [])]  # fmt: skip
    lines += [f"{name + ', ' + order:24} {' '.join(case['said'])}" for name in PROFILERS
              for order, case in results.get(name, {}).get("orders", {}).items()]  # fmt: skip
    return "\n".join(lines)


def _add_only(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--only CASE …`` to the command line."""
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="record these again into the file")


main = Bench(
    "compatibility", RESULTS, ("missing",), lambda options, neutrino: record(options.out, options.only),
    judge, table, add=_add_only,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
