"""Places between instructions, and calls by name: where code goes, and what is refused or left out by name."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import FIRST_LINE, array, kernel, lines, only, probe, skipped

from neutrino.abi.reasons import Reason
from neutrino.demangle import demangle
from neutrino.errors import ToolMissingError
from neutrino.fatbin import read_file
from neutrino.fatbin.contents import read_contents
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.flow_graph import FlowGraph, Loops, may_wait
from neutrino.ptx.analysis.surroundings import Ranges
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from neutrino.resources import include_folder
from neutrino.toolchain.location import find_tool

Load = Callable[[str], ProbeSet]
SAVE = "SAVE [ M ] { 1 };"
SUM = '[map.M]\ntype = "sum"\nlevel = "thread"\ndata = { n = "u64" }\n'
BEGIN, END = "\n// neutrino begin r\n", "\n/* neutrino end r */\n"


def test_sites_of_a_loop(probe_set: Load) -> None:
    """In text order, with the labels; a label that nothing branches to begins no block."""
    body = "mov.u32 %r3, 0;\nTMP: mov.u32 %r4, 0;\nL:\nM: add.u32 %r3, %r3, 1;\n@%p1 bra M;\nbra.uni E;\nE: ret;"
    three = [
        probe(position, before=SAVE).replace("probe.p", f"probe.{name}")
        for name, position in (("a", "back-edge"), ("b", "loop-head"), ("c", "block"))
    ]
    twin = only(probe_module(parse(kernel(body)), probe_set(SUM + "".join(three))))
    assert [(site.probe, site.number, site.line - FIRST_LINE, site.instruction) for site in twin.sites[1:]] == [
        ("b", 1, 3, "M: add.u32 %r3, %r3, 1"),
        ("c", 1, 3, "M: add.u32 %r3, %r3, 1"),
        ("a", 2, 4, "@%p1 bra M"),
        ("c", 3, 5, "bra.uni E"),
        ("c", 4, 6, "E: ret"),
    ]
    assert twin.sites[0].number == 0
    assert not twin.left_out


@pytest.mark.parametrize(
    ("position", "body", "shown", "reason"),
    [
        # A loop that is entered in the middle.
        ("loop-head", "@%p1 bra B;\nA: add.u32 %r3, %r3, 1;\nB: add.u32 %r3, %r3, 1;\n@%p1 bra A;\nld.u32 %r3, [%rd1];",
         "A: add.u32 %r3, %r3, 1", "the loop has several entries"),
        ("back-edge", "@%p1 bra B;\nA: add.u32 %r3, %r3, 1;\nB: add.u32 %r3, %r3, 1;\n@%p1 bra A;\nld.u32 %r3, [%rd1];",
         "@%p1 bra A", "the loop has several entries"),
        ("back-edge", "T: .branchtargets A, B;\nA: add.u32 %r3, %r3, 1;\nbrx.idx %r1, T;\nB: ld.u32 %r3, [%rd1];",
         "brx.idx %r1, T", "a branch by a table"),
    ],
)  # fmt: skip
def test_what_is_no_place_is_left_out_by_name(
    position: str, body: str, shown: str, reason: str, probe_set: Load
) -> None:
    both = probe_set(SUM + probe(f"{position} | ld", before=SAVE))
    (left,) = only(probe_module(parse(kernel(f"{body}\nret;")), both)).left_out
    assert left.instruction == shown
    assert reason in left.reason
    # And it is the reason where a kernel has nothing else.
    alone = probe_set(SUM + probe(position, before=SAVE))
    why, detail = skipped(probe_module(parse(kernel(f"{body}\nret;")), alone))
    assert why is Reason.NO_SITE
    assert detail.startswith(f"line {left.line}: '{shown}'")
    assert reason in detail


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        (f"{END}ret;", 1, "the range r ends, and has not begun"),
        (f"{BEGIN}{BEGIN}ret;", 3, "the range r begins, and has begun already"),
        (f"{BEGIN}@%p1 ret;{END}ret;", 2, "threads leave the function within the range r"),
        (f"{BEGIN}mov.u32 %r3, 1;", 3, "threads leave the function within the range r"),
        (f"@%p1 bra A;{BEGIN}A: mov.u32 %r3, 1;{END}ret;", 2, "some ways to this place are in the range r"),
        (f"A: {BEGIN}mov.u32 %r3, 1;\n@%p1 bra A;{END}ret;", 0, "some ways to this place are in the range r"),
        (f"mov.u32{BEGIN}%r3, 1;{END}ret;", 1, "a mark of the range r stands within an instruction or a call"),
        (f"{{ .param .u32 g; {BEGIN} st.param.u32 [g], 1; call f, (g); {END} }}\nret;", 1,
         "a mark of the range r stands within an instruction or a call"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("position", ["range:r", "* & !range:?"])
def test_ill_formed_ranges(position: str, body: str, line: int, message: str, probe_set: Load) -> None:
    module = parse(kernel(body, before=".func f (.param .u32 g) { ret; }"))
    probes = probe_set(SUM + probe(position, before=SAVE))
    reason, detail = skipped(probe_module(module, probes))
    assert reason is Reason.UNSUPPORTED
    assert detail.startswith(f"line {FIRST_LINE + line}: {message}"), detail
    # A probe that does not ask for the range is none the worse.
    assert only(probe_module(module, probe_set(SUM + probe("mov | ret & !range:other", before=SAVE))))


def test_what_looks_like_a_mark(probe_set: Load) -> None:
    """A mark is a comment of its own."""
    body = "// see neutrino begin r\n/* // neutrino begin r\n */ // neutrino begin r s\n ld.u32 %r3, [%rd1];\nret;"
    probes = probe_set(SUM + probe("ld.u32 & range:r", before=SAVE))
    reason, detail = skipped(probe_module(parse(kernel(body)), probes))
    assert reason is Reason.NO_SITE
    assert detail.endswith("; it has no marks of ranges")


@pytest.mark.parametrize(
    ("position", "hint"),
    [
        ("call:h*", "; it calls f, g"),
        ("load & range:q", "; it has marks of r"),
        ("loop-head", "; it has no loop"),
        ("* & call:f & range:q", "; it calls f, g; it has marks of r"),
    ],
)
def test_near_misses(position: str, hint: str, probe_set: Load) -> None:
    body = f"{BEGIN}call f;{END}call g; ret;"
    module = parse(kernel(body, before=".func f { ret; }\n.func g { ret; }"))
    reason, detail = skipped(probe_module(module, probe_set(SUM + probe(position, before=SAVE))))
    assert reason is Reason.NO_SITE
    assert detail == f"no instruction matches {position}{hint}"


def test_calls_by_name(probe_set: Load) -> None:
    """By mangled, demangled and wildcard names; a call by address has none, whatever its register is called."""
    functions = "".join(f".func _Z1{name}i (.param .u32 g) {{ ret; }}\n" for name in "fgh")
    called = "{{ .param .u32 g; st.param.u32 [g], 1; {} }}\n"
    body = called.format("call _Z1fi, (g);") + called.format("call _Z1gi, (g);")
    body += ".reg .b64 _Z1f; mov.u64 _Z1f, _Z1hi; P: .callprototype _ (.param .u32 _);\n"
    body += called.format("call _Z1f, (g), P;") + "ret;"
    for position, expected in (
        ("call:_Z1fi", ["_Z1fi"]), ("call:f(int)", ["_Z1fi"]), ("call:f", ["_Z1fi"]), ("call:_Z1*", ["_Z1fi", "_Z1gi"]),
        ("call & !call:f", ["_Z1gi", "_Z1f"]), ("call:* & !call:g(int)", ["_Z1fi"]), ("call:_Z1f", []),
    ):  # fmt: skip
        probes = probe_set(SUM + probe(position, before=SAVE))
        twins = probe_module(parse(kernel(body, before=functions)), probes, demangle=demangle)
        sites = only(twins).sites if expected else ()
        assert [re.findall(r"_Z1\w+", site.instruction)[0] for site in sites] == expected, position


def test_code_is_outside_of_the_call_and_under_the_branch(probe_set: Load) -> None:
    call = "L: { .param .u32 g; st.param.u32 [g], 1; call f, (g); }"
    module = parse(kernel(f"{call}\n@!%p1 bra L;\nret;", before=".func f (.param .u32 g) { ret; }"))
    counting = ".reg .u32 %n; mov.u32 %n, LANES; add.u32 %n, %n, SITE;"
    probes = probe_set(SUM + probe("loop-head | back-edge", before=counting))
    text = "\n".join(lines(only(probe_module(module, probes))))
    head, edge = re.findall(r"(?:.*activemask.*\n(?:.*%N.*\n)+)(.*)", text)
    assert head.startswith("{ .param .u32 g; st.param.u32 [g], 1; call f, (g); }")
    assert edge == "@!%p1 bra L;"
    assert re.findall(r".*activemask", text)[-1] == "@!%p1 activemask"


def test_a_place_between_a_product_and_its_sum(probe_set: Load) -> None:
    """A predicated store goes below the sum, as at instructions."""
    body = f"mul.f32 %f1, %f2, %f3;{BEGIN}add.f32 %f1, %f1, %f4;{END}ret;"
    timed = ".reg .u64 %t; mov.u64 %t, %clock64; SAVE [ M ] { %t };"
    probes = probe_set(array(["u64"], 8) + probe("range:r", before=timed))
    found = lines(only(probe_module(parse(kernel(body)), probes)))
    order = [next(at for at, line in enumerate(found) if word in line) for word in ("%clock64", "add.f32", "st.global")]
    assert order == sorted(order)


def test_a_mark_before_the_declarations(probe_set: Load) -> None:
    module = parse(kernel(f"{END}ret;").replace("{\n.reg", "{\n// neutrino begin r\n.reg"))
    timed = ".reg .u64 %t; mov.u64 %t, %clock64;"
    found = lines(only(probe_module(module, probe_set(SUM + probe("range:r", before=f"{timed} {SAVE}")))))
    words = ".reg .u64 %N", "%clock64", "ld.param"
    order = [next(at for at, line in enumerate(found) if word in line) for word in words]
    assert order == sorted(order)


CUDA = """#include <neutrino_mark.h>
__device__ __host__ float twice(float x) { NEUTRINO_BEGIN(inner); x *= 2; NEUTRINO_END(inner); return x; }
extern "C" __global__ void k(const float *x, float *y, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    NEUTRINO_BEGIN(soft_max_1);
    for (int j = 0; j < n; j++) sum += twice(x[j]);
    NEUTRINO_END(soft_max_1);
    y[i] = sum + x[i];
}
int main() { return twice(1) != 2; }
"""


@pytest.mark.parametrize("form", ["-ptx", "-fatbin"])
def test_marks_of_the_header(probe_set: Load, tmp_path: Path, form: str) -> None:
    """In a text, and in what nvcc embeds, which has no comments."""
    (tmp_path / "a.cu").write_text(CUDA)
    code = "-arch=compute_80" if form == "-ptx" else "-gencode=arch=compute_80,code=compute_80"
    try:
        argv = [str(find_tool("nvcc")), form, code, f"-I{include_folder()}", "-o", "a.out", "a.cu"]
    except ToolMissingError as error:
        pytest.skip(str(error))
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"nvcc does not work: {result.stderr.strip()}")
    assert result.stderr == ""
    if form == "-ptx":
        module = parse((tmp_path / "a.out").read_text())
    else:
        (container,) = read_file(tmp_path / "a.out")
        (image,) = container.images
        module = parse(bytes(read_contents(image).data).rstrip(b"\0").decode())
        assert "//" not in module.text
    # The loop is unrolled: its ranges lie in the other, one after another.
    for position, loads in (("ld.global & range:soft*", range(2, 100)), ("ld.global & !range:soft_max_1", range(1, 2))):
        assert len(only(probe_module(module, probe_set(SUM + probe(position, before=SAVE)))).sites) in loads
    twin = only(probe_module(module, probe_set(SUM + probe("range:inner", before=SAVE, after=SAVE))))
    shown = [site.instruction for site in twin.sites]
    assert shown == ["// neutrino begin inner", "// neutrino end inner"] * (len(shown) // 2)
    assert len(shown) > 2


def test_names_that_nothing_uses_are_marks_in_code_alone(probe_set: Load) -> None:
    """As comments are: code goes where they stand, and what a comment or a string holds is none."""
    begin, end = "{ .reg .b32 neutrino_begin_r; }\n", "{\n\t.reg .b32 neutrino_end_r;\n}\n"
    others = "// { .reg .b32 neutrino_end_r; }\n/* { .reg .b32 neutrino_end_r; } */\n{ .reg .b32 neutrino_began_r; }\n"
    body = f"mov.u32 %r3, 0;\n{begin}{others}ld.u32 %r3, [%rd1];\n{end}ld.u32 %r4, [%rd1];\nret;"
    inside = only(probe_module(parse(kernel(body)), probe_set(SUM + probe("load range:r", before=SAVE))))
    assert [site.instruction for site in inside.sites] == ["ld.u32 %r3, [%rd1]"]
    twin = only(probe_module(parse(kernel(body)), probe_set(SUM + probe("range:r", before=SAVE, after=SAVE))))
    assert [site.instruction for site in twin.sites] == ["// neutrino begin r", "// neutrino end r"]
    text = "\n".join(lines(twin))
    assert "{ .reg .b32 neutrino_begin_r; }" in text


def _reached(after: dict[int, set[int]], without: int) -> set[int]:
    """The blocks that the first one leads to by ways that do not pass another."""
    found, pending = set(), {0} - {without}
    while pending:
        found |= pending
        pending = {successor for block in pending for successor in after[block]} - found - {without}
    return found


@given(st.lists(st.tuples(st.sampled_from(["", "bra", "@%p1 bra", "ret", "@%p1 ret"]), st.integers(0, 7)), max_size=8))
@settings(max_examples=150, deadline=None)
def test_loops_of_random_flow_graphs(ends: list[tuple[str, int]]) -> None:
    """A back edge goes to a block without which its start is not reached; all cycles that are left are irreducible."""
    count = len(ends)
    after: dict[int, set[int]] = {count: set()}
    text = ""
    for block, (end, target) in enumerate(ends):
        target %= count + 1
        text += f"L{block}: mov.u32 %r1, {block}; "
        text += f"{end} L{target}; " if "bra" in end else f"{end}; " if end else ""
        after[block] = ({target} if "bra" in end else set()) | ({block + 1} if end[:1] in {"", "@"} else set())
    text = f"{{ {text}L{count}: ret; }}"
    body = Body(text, 0, len(text))
    graph = FlowGraph(body)
    loops = Loops(body, graph)
    # Blocks that nothing branches to begin in the middle of one of the graph's.
    heads = {int(text[body.ends[start - 1] if start else 1 :].split()[0][1:-1]): block
             for block, start in enumerate(graph.starts) if start < len(body) - 1}  # fmt: skip
    numbers = {}
    for block in range(count + 1):
        numbers[block] = heads[block] if block in heads else numbers[block - 1]
    reached = _reached(after, -1)
    back = {(one, other) for one in reached for other in after[one] if one not in _reached(after, other)}
    assert {(edge.start, edge.end) for edge in loops.back_edges} == {(numbers[a], numbers[b]) for a, b in back}
    # Without the back edges only irreducible loops are left: as long as there is a block without successors, drop it.
    rest = {one: {other for other in after[one] if (one, other) not in back} for one in reached}
    while done := [one for one, successors in rest.items() if not successors]:
        rest = {one: successors - set(done) for one, successors in rest.items() if one not in done}
    assert bool(loops.irreducible) == bool(rest)
    assert {edge.end for edge in loops.irreducible} <= {numbers[one] for one in rest}


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("ld.global.u32 %r1, [%a]; bra L0; L0: st.global.u32 [%a], %r1; ret;", False),
        ("L0: ld.volatile.global.u32 %r1, [%a]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L0; ret;", True),
        ("L0: atom.global.cas.b32 %r1, [%a], 0, 1; bra L1; L1: setp.ne.u32 %p1, %r1, 0; @%p1 bra L0; ret;", True),
        ("L0: mbarrier.try_wait.shared.b64 %p1, [%a], %b; @!%p1 bra L0; ret;", True),
        ("L0: add.u32 %r1, %r1, 1; ld.param.u32 %r2, [n]; st.global.u32 [%a], %r1; @%p1 bra L0; ret;", False),
        ("ld.global.u32 %r1, [%a]; call f; ret;", True),
        ("L0: ld.global.u32 %r1, [%a]; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L0; ret;", False),
        ("ld.global.u32 %r1, [%a]; L0: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra L0; ret;", True),
        ("L0: ld.shared.u32 %r1, [%a]; shfl.sync.idx.b32 %r3, %r1, 0, 31, -1; setp.eq.u32 %p1, %r3, 0; @!%p1 ret; "
         "bra L0;", True),
        # A loop that no thread comes to.
        ("ret; L0: ld.global.u32 %r1, [%a]; bra L0;", False),
    ],
)
def test_a_body_may_wait_if_a_loop_depends_on_memory(text: str, waits: bool) -> None:
    module = parse(f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {{ {text} }}\n")
    assert module.entries[0].body is not None
    assert may_wait(Body(module.code, *module.entries[0].body)) == waits


_STRETCH = st.tuples(
    st.text("be.", max_size=3), st.sampled_from(["", "bra", "@%p1 bra", "ret", "@%p1 ret"]), st.integers(0, 5)
)


@given(st.lists(_STRETCH, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_ranges_of_random_flow_graphs(stretches: list[tuple[str, str, int]]) -> None:
    """Against all ways through the text, stretch by stretch: of marks and instructions, or of nothing at all."""
    count = len(stretches)
    written = {"b": "// neutrino begin r\n", "e": "/* neutrino end r */ ", ".": "mov.u32 %r1, 1; "}
    text = "{ "
    for number, (items, end, target) in enumerate([*stretches, ("", "ret", 0)]):
        text += f"L{number}: " + "".join(written[item] for item in items)
        text += f"{end} L{target % (count + 1)}; " if "bra" in end else f"{end}; " if end else ""
    text += "}"
    states: dict[tuple[int, int], set[bool]] = {}
    is_wrong = False
    pending = [(0, False)]
    while pending:
        number, is_open = pending.pop()
        if is_open in states.setdefault((number, 0), set()):
            continue
        states[number, 0].add(is_open)
        items, end, target = stretches[number] if number < count else ("", "ret", 0)
        for at, item in enumerate(items, start=1):
            is_wrong |= (item == "b" and is_open) or (item == "e" and not is_open)
            is_open = is_open if item == "." else item == "b"
            states.setdefault((number, at), set()).add(is_open)
        is_wrong |= "ret" in end and is_open
        after = [target % (count + 1)] if "bra" in end else []
        pending += [(other, is_open) for other in [*after, *([number + 1] if end[:1] in {"", "@"} else [])]]
    is_wrong |= any(len(found) > 1 for found in states.values())
    module = parse(f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {text}\n")
    assert module.entries[0].body is not None
    body = Body(module.code, *module.entries[0].body)
    ranges = Ranges(module, body)
    assert (ranges.fault("r") is not None) == is_wrong
    if not is_wrong:
        expected = [
            states.get((number, at)) == {True}
            for number, (items, _, _) in enumerate(stretches) for at, item in enumerate(items, 1) if item == "."
        ]  # fmt: skip
        found = [ranges.is_open("r", one.start) for one in body if one.word == "mov"]
        assert found == expected
