"""bench.machine_code without a GPU: what stands in for kernels, and how a program that dies is started again."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from bench import machine_code

RUNTIME = """
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaFuncGetName(const char **name, const void *function) { *name = (const char *)function; return 0; }
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t s, void *stream)
{ return printf("own %s %u %u %d %zu %p\\n", (const char *)f, g.x, b.z, *(int *)a[0], s, stream) < 0; }
int cudaLaunchKernelExC(const void *c, const void *f, void **a)
{ return printf("own %s %d %d\\n", (const char *)f, *(int *)a[0], *(int *)c) < 0; }
"""
DRIVER = """
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long start; unsigned elapsed, multiprocessor; } record;
static record records[1 << 10];
static int launches;
int cuMemAlloc_v2(unsigned long long *at, size_t size)
{ (void)size; *at = (unsigned long long)(size_t)records; return 0; }
int cuMemsetD32Async(unsigned long long at, unsigned value, size_t words, void *stream)
{ (void)stream; memset((void *)(size_t)at, (int)value, 4 * words); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long at, size_t size)
{ memcpy(to, (void *)(size_t)at, size); return 0; }
int cuStreamSynchronize(void *stream) { (void)stream; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{ *value = attribute == 16 && !device ? 132 : 0; return 0; }
/* What a twin with block_sched does: the second launch misses a warp and has an unknown multiprocessor. */
static void probed(void *block, unsigned blocks, unsigned threads)
{
    const unsigned *words = block;
    const unsigned long long *addresses = block;
    unsigned warps = blocks * ((threads + 31) / 32), wrong = launches++;
    record *out = (record *)(size_t)addresses[3];
    if (words[0] != (threads + 31) / 32 || words[1] != warps || words[2] || words[3] || addresses[2] || addresses[4])
        printf("another probe block\\n");
    for (unsigned i = wrong; i < warps; i++)
        out[i] = (record){1000 + i, 10 + i, wrong && i == wrong ? 132 : i % 132};
}
int cuModuleLoad(void **module, const char *path) { *module = (void *)path; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)name; *function = module; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *f)
{ *value = attribute ? 0 : strstr((char *)f, "small") ? 96 : 1024; return 0; }
int cuFuncSetAttribute(void *f, int attribute, int value)
{ return printf("set %s %d %d\\n", (char *)f, attribute, value) < 0; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                   void *stream, void **p, void **extra)
{ if (strstr((char *)f, "probed")) probed(p[2], x * y * z, tx * ty * tz);
  (void)extra; return printf("twin %s %u %u %u %u %u %u %u %p %d %d %d\\n", (char *)f, x, y, z, tx, ty, tz, shared,
                             stream, *(int *)p[0], *(int *)p[1], *(int *)p[2]) < 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)(1L + flags); return 0; }
int cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { (void)from; (void)to; *ms = 0.5f; return 0; }
"""
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 g, b; size_t shared; void *stream; void *attributes; unsigned count; } config;
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaLaunchKernelExC(const config *, const void *, void **);
int main(int count, char **arguments)
{
    void (*mode)(int, int) = (void (*)(int, int))dlsym(RTLD_DEFAULT, "machine_code_mode");
    int (*list)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "machine_code_read");
    const char *(*log)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "machine_code_log");
    int first = 42, second = 43;
    void *values[] = {&first, &second};
    if (count < 3 || list(arguments[1]) != 1)
        return 1;
    for (int one = 0; one < 6; one++) {
        dim3 grid = {7, 2, 3}, block = {4, 5, 6};
        config with = {grid, block, 70000, (void *)8, 0, 0};
        if (one == 5 && list(arguments[2]) != 1)
            return 2;
        mode(one < 5 ? one : 4, one == 1);
        cudaLaunchKernel("alpha", grid, block, values, 100, (void *)9);
        cudaLaunchKernel("beta", grid, block, values, 0, (void *)9);
        cudaLaunchKernelExC(&with, "alpha", values);
        with.count = 1;
        cudaLaunchKernelExC(&with, "alpha", values);
        printf("log %s", log());
    }
    return 0;
}
"""


def test_launches_by_other_functions(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")

    def build(name: str, text: str, *options: str) -> Path:
        (tmp_path / f"{name}.c").write_text(text)
        argv = [compiler, str(tmp_path / f"{name}.c"), "-o", str(tmp_path / name), *options]
        subprocess.run(argv, check=True, capture_output=True)
        return tmp_path / name

    library = build("libcudart.so.13", RUNTIME, "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13")
    build("libcuda.so.1", DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    program = build("program", PROGRAM, str(library), "-ldl")
    strict = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-ldl")
    shim = build("shim.so", machine_code.SHIM.read_text(), *strict)
    # Of the third kind there is no file.
    (tmp_path / "list").write_text("alpha\t2\t/cut\t\t/identity\t/probed\n")
    (tmp_path / "other").write_text("alpha\t2\t/cut\t\t/identity\t/probed_small\n")
    environment = {"LD_PRELOAD": str(shim), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [program, tmp_path / "list", tmp_path / "other"], env=environment, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    own = ["own alpha 7 6 42 100 0x9", "own beta 7 6 42 0 0x9", "own alpha 42 7", "own alpha 42 7"]
    log = ["log alpha\town\t0.000000", "beta\town\t0.000000", "alpha\town\t0.000000"]
    # The twins get one parameter more, which is zeros; launches with attributes stay the program's.
    twins = [
        "twin /cut 7 2 3 4 5 6 100 0x9 42 43 0", "own beta 7 6 42 0 0x9", "set /cut 8 70000",
        "twin /cut 7 2 3 4 5 6 70000 0x8 42 43 0", "own alpha 42 7",
        "log alpha\ttwin\t0.500000", "beta\town\t0.500000", "alpha\ttwin\t0.500000",
    ]  # fmt: skip
    identity = [
        "twin /identity 7 2 3 4 5 6 100 0x9 42 43 0", "own beta 7 6 42 0 0x9", "set /identity 8 70000",
        "twin /identity 7 2 3 4 5 6 70000 0x8 42 43 0", "own alpha 42 7",
        "log alpha\ttwin\t0.000000", "beta\town\t0.000000", "alpha\ttwin\t0.000000",
    ]  # fmt: skip
    # 42 blocks of 120 threads: 4 warps of each, the probe block's first number. Then what was recorded.
    probed = [
        "twin /probed 7 2 3 4 5 6 100 0x9 42 43 4", "own beta 7 6 42 0 0x9", "set /probed 8 70000",
        "twin /probed 7 2 3 4 5 6 70000 0x8 42 43 4", "own alpha 42 7",
        "log alpha\ttwin\t0.000000\t168\t168\t0\t177", "beta\town\t0.000000",
        "alpha\ttwin\t0.000000\t168\t167\t1\t177",
    ]  # fmt: skip
    # At last a twin with too many registers for blocks of so many threads.
    assert done.stdout.splitlines() == [*own, *log, *twins, *own, *log, *identity, *probed, *own, *log]


DYING = """
import json, os, signal, sys, time
what, start = sys.argv[2], int(sys.argv[3])
names = ["one", "two", "three", "four", "five"]
print(json.dumps({"operators": names, "device": "none", "torch": "0", "arch": "sm_90"}), flush=True)
for number, name in enumerate(names):
    if number < start:
        continue
    for mode in ("own", "cut"):
        print(f"begin {number} {name} {mode}", flush=True)
        if name == "two" and mode == "cut":
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "four":
            time.sleep(600)
    row = {"number": number, "name": name, "large": False, "modes": {}}
    if name == "five":
        row["error"] = "CUDA error: an illegal instruction"
    print(json.dumps(row), flush=True)
    if name == "five":
        sys.exit(3)
"""


def test_what_dies_or_hangs_is_named_and_the_rest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(DYING)
    monkeypatch.setattr(machine_code, "PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(machine_code, "SILENT_S", 10.0)
    died: list[machine_code.Json] = []
    head, rows = machine_code._operators(Path("shim"), "compare", [], time.monotonic() + 600, died)
    assert head["operators"] == ["one", "two", "three", "four", "five"]
    assert [row["name"] for row in rows] == ["one", "three", "five"]
    assert [row["at"] for row in died] == ["1 two cut", "3 four own", "4 five cut"]


def _row(name: str, same: bool, how: str = "twin") -> machine_code.Json:
    own = {"same": True, "launches": {f"own {name}_kernel": 2}, "times": {f"{name}_kernel": 100.0}}
    twin = {"same": same, "launches": {f"{how} {name}_kernel": 2}, "times": {f"{name}_kernel": 103.0}}
    modes = {"own": own, "again": own, "cut": twin, "grown": twin, "identity": twin}
    return {"number": 0, "name": name, "large": True, "modes": modes, "error": ""}


def test_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [_row(f"op{number}", same=True) for number in range(machine_code.LEAST_KERNELS)]
    results = {
        "device": "a", "torch": "b", "kernels": ["k"], "made": ["k"], "left": {}, "died": [], "results": rows,
    }  # fmt: skip
    assert machine_code.say(results) == 0
    assert "× 1.030" in capsys.readouterr().out
    for row in (_row("bad", same=False), _row("failed", same=True, how="failed")):
        assert machine_code.say({**results, "results": [*rows, row]}) == 1
        assert f"wrong: {row['name']}" in capsys.readouterr().out
    assert machine_code.say({**results, "results": rows[1:]}) == 1
    assert machine_code.say({**results, "died": [{"what": "compare", "at": "3 x cut", "said": ""}]}) == 1
    unsteady = _row("unsteady", same=False)
    unsteady["modes"]["again"] = {**unsteady["modes"]["again"], "same": False}
    assert machine_code.say({**results, "results": [*rows, unsteady]}) == 0


def _recorded(counts: list[int], less: int) -> machine_code.Json:
    """Results of twins of all kinds. counts: of records of one operator. less: bytes that another one lacks."""
    operators = list(machine_code.BYTES)[: machine_code.LEAST_OF_BYTES]
    others = (f"op{number}" for number in range(machine_code.LEAST_KERNELS - len(operators)))
    rows = [_row(name, same=True) for name in (*operators, *others)]
    for row in rows:
        cut, kernel = row["modes"]["cut"], f"{row['name']}_kernel"
        row["modes"]["block_sched"] = {**cut, "records": {kernel: [8, 8, 0, 0]}}
        moved = machine_code.BYTES.get(row["name"], (0, 0))
        runs = 1 + machine_code.TURNS
        row["modes"]["gmem_bytes"] = {**cut, "sums": {kernel: [runs * moved[0], runs * moved[1], 0, 0, 0]}}
    rows[3]["modes"]["block_sched"]["records"][f"{operators[3]}_kernel"] = counts
    rows[2]["modes"]["gmem_bytes"]["sums"][f"{operators[2]}_kernel"][1] -= less
    return {
        "device": "a", "torch": "b", "kinds": machine_code.KINDS, "kernels": ["k"], "made": ["k"], "left": {},
        "died": [], "results": rows,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "less", "missed"),
    [
        ([8, 8, 0, 0], 0, ()),
        ([8, 7, 0, 0], 0, ("block_sched",)),
        ([8, 8, 1, 0], 0, ("block_sched",)),
        ([8, 8, 0, 1], 0, ("block_sched",)),
        ([8, 8, 0, 0], 4, ("gmem_bytes",)),
    ],
)
def test_verdicts_on_records(
    counts: list[int], less: int, missed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    results = _recorded(counts, less)
    assert machine_code.say(results) == bool(missed)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "same bits" in line]
    verdicts = {words[1]: words[0] for words in lines}
    assert verdicts == {**dict.fromkeys(machine_code.KINDS, "ok"), **dict.fromkeys(missed, "missed")}


def test_too_few_operators_have_known_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    results = _recorded([8, 8, 0, 0], 0)
    del results["results"][0]["modes"]["gmem_bytes"]["sums"]
    results["results"][0]["modes"]["gmem_bytes"]["launches"] = {"own k": 2}
    assert machine_code.say(results) == 1
    assert f"bytes of {machine_code.LEAST_OF_BYTES - 1} operators" in capsys.readouterr().out


def test_records_of_launches() -> None:
    launches = [
        ["k", "twin", "0.010000", "8", "8", "0", "21000"], ["k", "twin", "0.010000", "8", "7", "1", "50000"],
        ["k", "twin", "0.000000", "8", "8", "0", "4000000"], ["j", "own", "0.500000"],
    ]  # fmt: skip
    row = {"number": 0, "name": "op", "large": False, "modes": {"block_sched": {"same": True, "launches": launches}}}
    # At most 2.1 GHz, and a slack of 20,000 cycles: 41,000 in 10 µs. Without a time nothing is said.
    assert machine_code._short(row)["modes"]["block_sched"]["records"] == {"k": [24, 23, 1, 1]}


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([1.0] * 5 + [1.1] * 4 + [9.0], "ok     gmem_bytes × 1.050 and × 1.100"),
        ([1.0] * 5 + [1.2] * 4 + [9.0], "ok     gmem_bytes × 1.100 and × 1.200"),
        ([1.0] * 4 + [1.2] * 6, "missed gmem_bytes × 1.200 and × 1.200"),
        ([1.0] * 8 + [1.4] * 2, "missed gmem_bytes × 1.000 and × 1.400"),
        ([1.1], "ok     gmem_bytes × 1.100 and × 1.100"),
    ],
)
def test_what_takes_longer_than_it_may_is_said_to_be_missed(ratios, said):
    assert machine_code.said_of_times("gmem_bytes", ratios).startswith(said)
