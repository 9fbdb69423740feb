"""Which instructions tracepoints find: classes, alternatives, functions, source lines, and all at once."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import assemble
from ptx_text import FIRST_LINE, array, kernel, lines, only, probe, skipped

from neutrino.abi.levels import Level
from neutrino.abi.reasons import Reason
from neutrino.demangle import demangle
from neutrino.emulator.text import Label, Statement, read_module
from neutrino.errors import Span, ToolMissingError
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.matching import Matcher
from neutrino.ptx.analysis.surroundings import Locations
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.isa.opcodes import find
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import Function, Module, parse
from neutrino.toolchain.location import find_tool
from tests.fronts import is_matched, parse_tracepoint

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "kernels").rglob("*.ptx"))
COUNT = ".reg .u64 %n; add.u64 %n, %n, 1;"


def positions(*texts: str) -> tuple[Probe, ...]:
    """Probes named by their number at these positions."""
    probes = []
    for number, text in enumerate(texts):
        tracepoint, faults = parse_tracepoint(text)
        assert tracepoint is not None, faults
        probes.append(Probe(str(number), tracepoint, Level.THREAD, Snippet(()), Snippet(()), Span(1, 1)))
    return tuple(probes)


def found(module: Module, function: Function, *texts: str) -> list[tuple[str, int, list[str]]]:
    """(opcode, number, names of probes) of each instruction of a function that positions match."""
    assert function.body is not None
    body = Body(module.code, *function.body)
    hits = Matcher(positions(*texts), demangle).find(module, function, body).hits
    return [(hit.statement.opcode, hit.number or 0, [probe.name for probe in hit.probes]) for hit in hits]


REGISTER_SETUP = {"ld.param.u64", "ld.param.u32", "mov.u32", "setp.lt.u32"}


def instructions(body: str, *texts: str) -> list[str]:
    """Opcodes in a kernel's body that positions match, without those that every kernel of the tests begins with."""
    module = parse(kernel(body))
    return [opcode for opcode, _, _ in found(module, module.entries[0], *texts) if opcode not in REGISTER_SETUP]


BODY = """ld.global.u32 %r3, [%rd1]; st.shared.u32 [%r2], %r3; atom.global.add.u32 %r4, [%rd1], 1;
red.global.add.u32 [%rd1], 1; bar.sync 0; @%p1 bra L; cvt.u64.u32 %rd2, %r3; L: ex2.approx.f32 %f1, %f2;
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3}, {%f1,%f2,%f3,%f4};
st.local.u32 [%r2], %r3; cp.async.ca.shared.global [%r2], [%rd1], 16; ret;"""


@pytest.mark.parametrize(("position", "opcodes"), [
    ("load", ["ld.global.u32", "cp.async.ca.shared.global"]),
    ("store", ["st.shared.u32", "st.local.u32", "cp.async.ca.shared.global"]),
    ("atomic", ["atom.global.add.u32", "red.global.add.u32"]),
    ("barrier", ["bar.sync"]),
    ("branch", ["bra", "ret"]),
    ("convert", ["cvt.u64.u32"]),
    ("special", ["ex2.approx.f32"]),
    ("tensor", ["mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"]),
    ("memory !local", ["ld.global.u32", "st.shared.u32", "atom.global.add.u32", "red.global.add.u32",
                              "cp.async.ca.shared.global"]),
    ("store !shared | bar | ld.shared", ["bar.sync", "st.local.u32"]),
    ("* !global !param !sync", ["st.shared.u32", "bra", "cvt.u64.u32", "ex2.approx.f32", "st.local.u32", "ret"]),
    ("red | red.global | atomic !u64", ["atom.global.add.u32", "red.global.add.u32"]),
    ("atom.*.add | *.approx", ["atom.global.add.u32", "ex2.approx.f32"]),
    ("st.*.u32", ["st.shared.u32", "st.local.u32"]),
    ("*.f16", ["mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"]),
    ("re* | m*a", ["red.global.add.u32", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "ret"]),
    ("*.m16*.f16", ["mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"]),
    ("memory & !(load | store)", ["atom.global.add.u32", "red.global.add.u32"]),
    ("memory & global & !atom", ["ld.global.u32", "red.global.add.u32", "cp.async.ca.shared.global"]),
    ("(load & store) | (branch & !ret)", ["bra", "cp.async.ca.shared.global"]),
    ("memory !load !local", ["st.shared.u32", "atom.global.add.u32", "red.global.add.u32"]),
    ("store & !st.shared", ["st.local.u32", "cp.async.ca.shared.global"]),
    ("* & @ & !load", ["bra"]),
])  # fmt: skip
def test_what_a_position_finds(position, opcodes):
    assert instructions(BODY, position) == opcodes


_WORDS = [
    "load", "store", "memory", "branch", "convert", "ld", "ld.global", "st.*.b32", "add", "*.f32", "global", "nc", "v4",
    "func:k*", "@", "generic",
]  # fmt: skip


_DOTTED = {
    "ld.global": r"ld\.(.*\.)?global(::|\.|$)",
    "st.*.b32": r"st\.(.*\.)?b32(\.|$)",
    "*.f32": r"[^.]+\.(.*\.)?f32(\.|$)",
}


def _conditions() -> st.SearchStrategy[str]:
    word = st.sampled_from(_WORDS)
    return st.recursive(
        word,
        lambda inner: st.one_of(
            st.builds("({} & {})".format, inner, inner),
            st.builds("({} | {})".format, inner, inner),
            st.builds("!{}".format, inner),
        ),
        max_leaves=6,
    )


def _holds(word: str, opcode: str, guard: object, function: str) -> bool:
    """Whether an instruction is what a word of the conditions says, by rules of its own."""
    parts = opcode.split(".")
    row = find(tuple(parts))
    classes = row.classes if row else frozenset()
    if word == "@":
        return guard is not None
    if word.startswith("func:"):
        return function.startswith("k")
    if word == "generic":
        return "memory" in classes and not re.search(r"\.(const|global|local|param|shared)\b", opcode)
    if word in {"load", "store", "memory", "branch", "convert"}:
        return word in classes
    if "." not in word:
        return any(part == word or part.startswith(f"{word}::") for part in parts)
    return re.match(_DOTTED[word], opcode) is not None


@settings(max_examples=300, deadline=None)
@given(condition=_conditions(), path=st.sampled_from([path for path in FIXTURES if path.stat().st_size < 20_000]))
def test_conditions_mean_what_they_say(condition, path):
    """Compared with Python's own and, or and not over each instruction."""
    module = parse(path.read_text("latin-1"))
    entry = module.entries[0]
    body = Body(module.code, *entry.body)
    python = re.sub(r"[^\s()&|!]+", lambda word: f"holds({word.group()!r})", condition)
    python = python.replace("&", " and ").replace("|", " or ").replace("!", " not ")
    expected = []
    for statement in body:
        if statement.mnemonic is None:
            continue
        holds = {word: _holds(word, statement.opcode, statement.guard, entry.name) for word in _WORDS}
        if eval(python, {"holds": holds.__getitem__}):
            expected.append(statement.position)
    hits = Matcher(positions(f"* & {condition}"), demangle).find(module, entry, body).hits
    assert [hit.statement.position for hit in hits] == expected


LINED = """.file 1 "/src/k.cu"
.loc 1 1 0
ld.global.u32 %r3, [%rd1];
.loc 1 2 0
ld.global.u32 %r3, [%rd1+4];
@%p1 ld.volatile.global.u32 %r4, [%rd1+8];
.loc 1 3 0
ld.global.u32 %r3, [%rd1+12];
st.global.u32 [%rd1], %r3;
ret;"""


@pytest.mark.parametrize(("position", "offsets"), [
    ("load & !param & k.cu:1-2", ["", "+4", "+8"]),
    ("ld.global & !k.cu:2", ["", "+12"]),
    ("ld.global & !(k.cu:1 | file:/src/k.cu:3)", ["+4", "+8"]),
    ("ld.global & k.cu:2-3 & !@", ["+4", "+12"]),
    ("ld.global & (@ | k.cu:3)", ["+8", "+12"]),
    ("ld.global & !(k.cu:2 & !volatile)", ["", "+8", "+12"]),
    ("ld.global & !(func:k | k.cu:1)", []),
    ("ld.global & !func:other & !k.cu:1-3", []),
    ("ld.global & !other.cu:1-3", ["", "+4", "+8", "+12"]),
])  # fmt: skip
def test_lines_functions_and_predicates_in_conditions(position, offsets):
    module = parse(kernel(LINED.partition("\n")[2], before=LINED.partition("\n")[0]))
    entry = module.entries[0]
    body = Body(module.code, *entry.body)
    hits = Matcher(positions(position), demangle).find(module, entry, body).hits
    found = [re.search(r"\[%rd1(\+\d+)?\]", module.code[hit.statement.start : hit.statement.end]) for hit in hits]
    assert [match[1] or "" for match in found] == offsets


def test_instructions_without_a_known_line_are_on_none():
    module = parse(kernel("ld.global.u32 %r3, [%rd1]; ret;"))
    matched = found(module, module.entries[0], "ld.global & !k.cu:3", "ld.global & k.cu:3")
    assert matched == [("ld.global.u32", 0, ["0"])]


def test_predicated_instructions_alone():
    """The others of the same opcode are none of the probe's, but may be another's."""
    module = parse(kernel("@%p1 bra L; bra L; @!%p1 st.global.u32 [%rd1], %r1; L: @%p1 ret; ret;"))
    wanted, (every,) = positions("branch | st.global"), positions("*")
    predicated = dataclasses.replace(
        wanted[0].tracepoint,
        patterns=tuple(dataclasses.replace(pattern, predicated=True) for pattern in wanted[0].tracepoint.patterns),
    )
    both = (dataclasses.replace(wanted[0], tracepoint=predicated), dataclasses.replace(every, name="every"))
    body = Body(module.code, *module.entries[0].body)
    hits = Matcher(both).find(module, module.entries[0], body).hits
    assert all(hit.probes[-1].name == "every" for hit in hits)
    assert [hit.statement.opcode for hit in hits if len(hit.probes) == 2] == ["bra", "st.global.u32", "ret"]
    assert all(hit.statement.guard for hit in hits if len(hit.probes) == 2)


def _statements(text: str) -> dict[str, list[Statement | Label]]:
    return {
        function.name: [item for item in function.items or () if isinstance(item, Statement | Label)]
        for function in read_module(text).functions
        if function.items is not None
    }


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_instruction_is_found(path):
    """As the emulator, which reads PTX with a reader of its own, sees them."""
    text = path.read_bytes().decode("latin-1")
    module = parse(text)
    read = _statements(text)
    assert read
    for function in (*module.entries, *module.functions):
        if function.body is not None:
            wanted = [item.opcode for item in read[function.name] if isinstance(item, Statement)]
            assert [(opcode, number) for opcode, number, _ in found(module, function, "*")] == [
                (opcode, number) for number, opcode in enumerate(wanted)
            ]


WORDS = ("ld", "ld.global", "ld.shared", "st", "st.global.f32", "mul", "*", "load", "memory", "store", "barrier", "bar",
         "ld.generic", "* !global", "memory !shared", "ld.global.f32", "convert", "cvt", "branch", "setp", "ret", "add",
         "special", "atomic", "tensor", "mov", "and", "shl", "fma.rn", "sub")  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_all_at_once_find_what_each_alone_does(data):
    """Whatever the number of patterns, and thus the way that the text is searched."""
    alternatives = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True).map(" | ".join)
    texts = data.draw(st.lists(alternatives, min_size=1, max_size=12))
    module = parse(data.draw(st.sampled_from(FIXTURES)).read_bytes().decode("latin-1"))
    probes = positions(*texts)
    for function in module.entries:
        body = Body(module.code, *function.body)
        every = Matcher(positions("*")).find(module, function, body).hits
        wanted = []
        for hit in every:
            parts = hit.statement.opcode.split(".")
            facts = find(tuple(parts))
            names = [
                probe.name for probe in probes
                if is_matched(probe.tracepoint, parts, facts.classes if facts else frozenset())
            ]  # fmt: skip
            if names:
                wanted.append((hit.statement.opcode, len(wanted), names))
        assert found(module, function, *texts) == wanted


FUNCTIONS = """.version 8.0
.target sm_90
.address_size 64
.func (.param .b32 r) _ZN5space5twiceIiEET_S1_(.param .b32 x)
{ .reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.s32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
.visible .entry _Z6kernelPi(.param .u64 a)
{ .reg .b32 %r<3>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [a]; add.s32 %r1, %r2, 5; st.global.b32 [%rd1], %r1; ret; }
.visible .entry other(.param .u64 a) { .reg .b32 %r<3>; add.s32 %r1, %r2, 5; ret; }
"""


@pytest.mark.parametrize(("name", "functions"), [
    ("_Z6kernelPi", {"_Z6kernelPi"}),
    ("kernel", {"_Z6kernelPi"}),
    ("kernel(int*)", {"_Z6kernelPi"}),
    ("kern", set()),
    ("kern*", {"_Z6kernelPi"}),
    ("int space::twice<int>(int)", {"_ZN5space5twiceIiEET_S1_"}),
    ("int space::twice<int>", {"_ZN5space5twiceIiEET_S1_"}),
    ("space::twice<int>", {"_ZN5space5twiceIiEET_S1_"}),
    ("space::*", {"_ZN5space5twiceIiEET_S1_"}),
    ("*", {"_Z6kernelPi", "_ZN5space5twiceIiEET_S1_", "other"}),
    ("o[st]her", {"other"}),
])  # fmt: skip
def test_names_of_functions(name, functions):
    module = parse(FUNCTIONS)
    every = (*module.entries, *module.functions)
    assert {function.name for function in every if found(module, function, f"add.s32 func:{name}")} == functions
    matcher = Matcher(positions(f"func:{name}"), demangle)
    assert {function.name for function in every if matcher.function_probes(function.name)} == functions


def test_a_kernel_by_its_name(probe_set, tools, tmp_path):
    probes = probe_set(probe("func:other | ld", before=COUNT, after=COUNT))
    twins = probe_module(parse(FUNCTIONS), probes, demangle=demangle)
    sites = {twin.name: [site.instruction for site in twin.sites] for twin in twins.kernels}
    assert sites == {"_Z6kernelPi": ["ld.param.u64 %rd1, [a]"], "other": [".entry other", "ret"]}
    assemble(twins.render(), "sm_90", tmp_path)


LINES = """__device__ __forceinline__ void inner(int *p, int v) {
    p[0] = v + 1002;
}
__device__ __forceinline__ void outer(int *p, int v) {
    p[1] = 1005;
    inner(p + 10, v);
}
__device__ __noinline__ int apart(int v) {
    return v * 1009;
}
extern "C" __global__ void k(int *p, int n) {
    p[2] = 1012;
    outer(p, n);
    inner(p + 20, n);
    for (int i = 0; i < n; i++) {
        p[i] += apart(i);
        __syncthreads();
    }
    if (n > 5) p[3] = 1019;
}
"""


@pytest.fixture(scope="module")
def lined(tmp_path_factory) -> str:
    """``LINES`` as nvcc writes it, with line information; constants name their lines."""
    folder = tmp_path_factory.mktemp("lines") / "söurce"
    folder.mkdir()
    (folder / "lines.cu").write_text(LINES)
    try:
        argv = [str(find_tool("nvcc")), "-ptx", "-lineinfo", "-arch=compute_80", "lines.cu"]
    except ToolMissingError as error:
        pytest.skip(str(error))
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    return (folder / "lines.ptx").read_bytes().decode("latin-1")


def test_lines_are_those_that_the_compiler_wrote(lined):
    module = parse(lined)
    (entry,) = module.entries
    places = Locations(module, *entry.body)
    told = {}
    for match in re.finditer(r"\b10\d\d\b", module.code):
        if entry.body[0] < match.start() < entry.body[1]:
            told[int(match[0]) - 1000] = places.place(match.start())
    assert {line: place.line for line, place in told.items()} == {2: 2, 5: 5, 12: 12, 19: 19}
    assert told[12].file.endswith("söurce/lines.cu")
    assert str(told[12]) == "lines.cu:12"
    assert str(told[5]) == "lines.cu:5, inlined at lines.cu:13"
    assert str(told[2]) == "lines.cu:2, inlined at lines.cu:6, inlined at lines.cu:13"


@pytest.mark.parametrize(("position", "instructions"), [
    ("st.global lines.cu:12", 1),
    ("st.global söurce/lines.cu:12", 1),
    ("st.global urce/lines.cu:12", 0),
    ("st.global lines.cu:2", 2),
    ("st.global lines.cu:1-12", 4),
    ("st.global lines.cu:13", 0),
    ("st.global lines.cu:2 | st.global lines.cu:12", 3),
])  # fmt: skip
def test_instructions_of_lines(position, instructions, lined):
    module = parse(lined)
    assert len(found(module, module.entries[0], position)) == instructions


def test_runs_of_a_line(lined, probe_set, tools, tmp_path):
    """Before the first and after the last instruction, around calls, as often the one as the other."""
    text = array(["u64"], 8, cap=2) + probe("lines.cu:16", before=COUNT, after="SAVE [ M ] { %n };")
    twin = only(twins := probe_module(parse(lined), probe_set(text)))
    code = lines(twin)
    opened = [index for index, line in enumerate(code) if line == "add.u64 %Nr_n, %Nr_n, 1;"]
    closed = [index for index, line in enumerate(code) if line.startswith("@%Ntq") and "st.global.b64" in line]
    assert len(opened) == len(closed) == len(twin.sites)
    assert all(first < last for first, last in zip(opened, closed, strict=True))
    assert all(last < first for last, first in zip(closed, opened[1:], strict=False))
    for first, last in zip(opened, closed, strict=True):
        run = code[first:last]
        assert sum("{ //" in line for line in run) == sum("} //" in line for line in run)
        assert not any(line.endswith(":") or re.search(r"\bbra\b", line) for line in run)
    assert {site.source for site in twin.sites} == {"lines.cu:16"}
    assemble(twins.render(), "sm_80", tmp_path)


def test_runs_end_at_labels_and_before_branches(probe_set, tools, tmp_path):
    body = """.loc 1 5 0
add.u32 %r3, %r3, 1;
L: add.u32 %r4, %r3, 1;
// .loc 1 9 9
@%p1 bra L;
sub.u32 %r4, %r4, 1; /* .loc 1 9 9 */ mul.lo.u32 %r5, %r4, %r4;
.loc 1 6 1
ret;"""
    text = kernel(body) + '.file 1 "/some/where/a.cu", 5, 6\n'
    probes = probe_set(probe("a.cu:5", before=COUNT, after=".reg .u64 %m; add.u64 %m, %m, SITE;"))
    twin = only(twins := probe_module(parse(text), probes))
    code = [line for line in lines(twin) if line and not line.startswith((".", "/"))]
    start = next(index for index, line in enumerate(code) if line.startswith("add.u64 %Nr_n"))
    assert [line.replace("%N", "") for line in code[start:-2]] == [
        "add.u64 r_n, r_n, 1;", "add.u32 %r3, %r3, 1;", "add.u64 r_m, r_m, 0;",
        "L: add.u64 r_n, r_n, 1;", "add.u32 %r4, %r3, 1;", "add.u64 r_m, r_m, 1;", "@%p1 bra L;",
        "add.u64 r_n, r_n, 1;", "sub.u32 %r4, %r4, 1; /* .loc 1 9 9 */ mul.lo.u32 %r5, %r4, %r4;",
        "add.u64 r_m, r_m, 2;",
    ]  # fmt: skip
    assert [(site.line - FIRST_LINE, site.number, site.source) for site in twin.sites] == [
        (1, 0, "a.cu:5"), (2, 1, "a.cu:5"), (5, 2, "a.cu:5"),
    ]  # fmt: skip
    assemble(twins.render(), "sm_90", tmp_path)


def test_what_is_missed_by_its_type_is_named(probe_set):
    body = "ld.global.b32 %r1, [%rd1]; ld.global.nc.v2.b32 {%r1, %r2}, [%rd1]; ld.shared.b32 %r1, [%r2]; ret;"
    probes = probe_set(probe("ld.global.f32 | st.f32", before=COUNT))
    assert skipped(probe_module(parse(kernel(body)), probes)) == (
        Reason.NO_SITE,
        "no instruction matches ld.global.f32 | st.f32, but for the type: ld.global.b32, ld.global.nc.v2.b32",
    )


@pytest.mark.parametrize("position", ["a.cu:5", "ld.param a.cu:5"])
def test_text_without_lines(position, probe_set):
    reason, detail = skipped(probe_module(parse(kernel("ret;")), probe_set(probe(position, before=COUNT))))
    assert reason is Reason.NO_SITE
    assert detail == f"no instruction matches {position}: the text has no line information"


def test_lines_that_lead_to_themselves():
    """Hostile line information: chains end."""
    loop = ".loc 1 5 0, function_name $L, inlined_at 1 6 0\n.loc 1 6 0, function_name $L, inlined_at 1 5 0\n"
    text = kernel(loop * 40 + ".loc 1 5 0, function_name $L+5, inlined_at 1 6 0\nret;\n.loc 7 0 0\nexit;")
    module = parse(text)
    places = Locations(module, *module.entries[0].body)
    place = places.place(module.code.index("ret;"))
    assert place.file == "file 1"
    assert 2 <= len(place.callers) <= 40
    assert places.place(module.code.index("exit;")) is None
    assert places.place(module.entries[0].body[0]) is None


def test_nothing_runs_behind_a_branch(probe_set, count_all, tools, tmp_path):
    """What every instruction is asked for is left out where it cannot be, and says so."""
    text = kernel("@%p1 bra L; add.u32 %r3, %r1, 1; L: ret;")
    twin = only(twins := probe_module(parse(text), probe_set(probe("*", before=COUNT, after=COUNT))))
    assert [left.instruction for left in twin.left_out] == ["@%p1 bra L", "ret"]
    assert {left.reason for left in twin.left_out} == {"nothing runs after it"}
    added = [int(line.split()[-1][:-1]) for line in lines(twin) if re.search("add.u64 %N(c0|r_n)", line)]
    assert sum(added) == 2 * len(twin.sites) - len(twin.left_out)
    assemble(twins.render(), "sm_90", tmp_path)


def test_all_lanes_that_come_to_an_instruction(probe_set, tools, tmp_path):
    """PRED is what the predicate was before an instruction that overwrites it."""
    take = ".reg .u32 %m; selp.u32 %m, 1, 0, PRED;"
    lanes = probe("setp", before=take, after=take).replace("level", 'lanes = "reaching"\nlevel')
    text = kernel("@!%p1 setp.lt.u32 %p1, %r1, %r2; @%p2 setp.lt.u32 %p3, %r1, 7; ret;")
    twin = only(twins := probe_module(parse(text), probe_set(lanes)))
    code = "\n".join(lines(twin))
    assert not re.search(r"@\S+ selp", code)
    overwritten = code[code.index("@!%p1 setp") :]
    after = re.search(r"selp\.u32 %Nr_m, 1, 0, (%\S+);", overwritten)
    assert after is not None
    assert after[1].startswith("%Ntq")
    assert re.search(rf"not\.pred {after[1]}, %(?:p1|Ntq\d+);", code)
    assemble(twins.render(), "sm_90", tmp_path)
