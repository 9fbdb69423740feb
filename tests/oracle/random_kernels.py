"""Small random kernels: structured control flow, guards, vectors, calls, jump tables, ends of every kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracle.bench import Kernel

_DATA = 8
_CELLS = 64
"""Elements of the input that loads may reach, and words of the output of each thread."""
_THREADS = 72

_ALU = ("add.s32", "sub.s32", "mul.lo.s32", "xor.b32", "and.b32", "or.b32", "min.s32", "max.u32", "shl.b32", "shr.u32")
_COMPARES = ("eq.s32", "ne.s32", "lt.s32", "ge.s32", "gt.u32", "le.u32")

_register = st.integers(0, _DATA - 1)
_predicate = st.integers(0, 3)
_guard = st.one_of(st.none(), st.tuples(st.booleans(), _predicate))
_source = st.one_of(_register.map(lambda number: f"%r{number}"), st.integers(-9, 40).map(str))
_spacing = st.sampled_from(("\n\t", " ", "\n\t// a comment; ret;\n\t", " /* ; */ "))


def _node(node: str, /, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(node), st.fixed_dictionaries(parts))


def _work(which: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    form = st.sampled_from(("reg", "param", "braces"))
    return _node("work", which=which, d=_register, a=_register, form=form, guard=_guard)


_LEAVES = st.one_of(
    _node("alu", opcode=st.sampled_from(_ALU), d=_register, a=_register, b=_source, guard=_guard),
    _node("setp", compare=st.sampled_from(_COMPARES), p=_predicate, a=_register, b=_source, guard=_guard),
    _node("selp", d=_register, a=_register, b=_register, p=_predicate, guard=_guard),
    _node("load", kind=st.sampled_from(("u32", "v2.u32", "u8", "s16", "chain")), d=_register, a=_register,
          offset=st.integers(-2, 3), guard=_guard),
    _node("store", kind=st.sampled_from(("u32", "v2.u32", "u8", "generic")), a=_register, slot=st.integers(0, 15),
          guard=_guard),
    _node("shared", d=_register, a=_register, slot=st.integers(0, 3), guard=_guard),
    _node("red", a=_register, guard=_guard),
    _node("call", d=_register, a=_register),
    _work(st.integers(0, 2)),
    _node("end", how=st.sampled_from(("ret", "exit")), guard=st.tuples(st.booleans(), _predicate)),
    _node("fma", d=_register, a=_register, guard=_guard),
)  # fmt: skip


def _branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        _node("if", p=_predicate, negated=st.booleans(), then=body, other=st.one_of(st.none(), body)),
        _node("loop", times=st.integers(1, 3), body=body),
        _node("switch", a=_register, cases=st.lists(body, min_size=2, max_size=4)),
        _node("scope", body=body, d=_register),
    )


_BODY = st.lists(st.recursive(_LEAVES, _branches, max_leaves=8), min_size=2, max_size=8)
_CALLED = st.lists(st.recursive(_LEAVES, _branches, max_leaves=4), min_size=1, max_size=5)


_MARKED = st.lists(
    st.recursive(
        _LEAVES,
        lambda inner: st.one_of(_branches(inner), _node("range", body=st.lists(inner, min_size=1, max_size=3))),
        max_leaves=8,
    ),
    min_size=2,
    max_size=6,
)
WITNESS, HEAD, BEGIN, END = (f"mov.b16 %h0, {number};" for number in range(1, 5))
_BEGINS_BLOCK = re.compile(r"L\w*:$|(?:@!?%p\d )?(?:bra|brx|ret|exit)\b")


@dataclass
class _Writer:
    """Prints the nodes. depth: of loops, each with a counter of its own. forms: of the functions that may be called.

    own: the number of the function that is written, which may call itself; None of the kernel. witnesses: each basic
    block begins with an instruction that nothing else has, ``WITNESS`` or that of a loop's head; so does what follows a
    mark of a range.
    """

    separators: list[str]
    forms: list[str] = field(default_factory=list)
    own: int | None = None
    lines: list[str] = field(default_factory=list)
    labels: int = 0
    depth: int = 0
    witnesses: bool = False

    def put(self, text: str, witness: str = WITNESS) -> None:
        separator = self.separators[len(self.lines) % len(self.separators)]
        self.lines.append(separator + text)
        if self.witnesses and _BEGINS_BLOCK.match(text):
            self.lines.append(f"\n\t{witness}\n")

    def label(self) -> str:
        self.labels += 1
        return f"L{'' if self.own is None else f'{self.own}_'}{self.labels}"

    def nodes(self, nodes: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, parts in nodes:
            getattr(self, f"write_{kind}")(**parts)

    def write_alu(self, opcode: str, d: int, a: int, b: str, guard: Any) -> None:
        amount = str(abs(int(b)) % 31) if opcode.startswith("sh") and not b.startswith("%") else b
        self.put(f"{_guarded(guard)}{opcode} %r{d}, %r{a}, {amount};")

    def write_setp(self, compare: str, p: int, a: int, b: str, guard: Any) -> None:
        unsigned = str(abs(int(b))) if "u32" in compare and not b.startswith("%") else b
        self.put(f"{_guarded(guard)}setp.{compare} %p{p}, %r{a}, {unsigned};")

    def write_selp(self, d: int, a: int, b: int, p: int, guard: Any) -> None:
        self.put(f"{_guarded(guard)}selp.b32 %r{d}, %r{a}, %r{b}, %p{p};")

    def write_fma(self, d: int, a: int, guard: Any) -> None:
        self.put(f"cvt.rn.f32.s32 %f1, %r{a};")
        self.put("mul.f32 %f2, %f1, 0f3F000000;")
        self.put("add.f32 %f1, %f2, %f1;")
        self.put(f"{_guarded(guard)}mov.b32 %r{d}, %f1;")

    def write_load(self, kind: str, d: int, a: int, offset: int, guard: Any) -> None:
        width = {"u32": 4, "v2.u32": 8, "u8": 1, "s16": 2, "chain": 4}[kind]
        self.put(f"and.b32 %r30, %r{a}, {_CELLS - 1};")
        self.put(f"mul.wide.u32 %rd5, %r30, {width};")
        self.put("add.s64 %rd5, %rd1, %rd5;")
        at = f"[%rd5+{offset * width}]" if offset else "[%rd5]"
        if kind == "v2.u32":
            self.put(f"{_guarded(guard)}ld.global.v2.u32 {{%r{d}, %r{(d + 1) % _DATA}}}, {at};")
        elif kind == "chain":
            self.put(f"{_guarded(guard)}ld.global.u32 %rd5, {at};")
            self.put(f"cvt.u32.u64 %r{d}, %rd5;")
        else:
            self.put(f"{_guarded(guard)}ld.global.{kind} %r{d}, {at};")

    def write_store(self, kind: str, a: int, slot: int, guard: Any) -> None:
        if kind == "v2.u32":
            self.put(f"{_guarded(guard)}st.global.v2.u32 [%rd2+{slot // 2 * 8}], {{%r{a}, %r{(a + 3) % _DATA}}};")
        elif kind == "generic":
            self.put(f"{_guarded(guard)}st.u32 [%rd2+{slot * 4}], %r{a};")
        else:
            self.put(f"{_guarded(guard)}st.global.{kind} [%rd2+{slot * 4}], %r{a};")

    def write_shared(self, d: int, a: int, slot: int, guard: Any) -> None:
        self.put(f"{_guarded(guard)}st.shared.u32 [%r31+{slot * 4}], %r{a};")
        self.put(f"{_guarded(guard)}ld.shared.u32 %r{d}, [%r31+{slot * 4}];")

    def write_red(self, a: int, guard: Any) -> None:
        self.put(f"{_guarded(guard)}red.global.add.u32 [%rd3], %r{a};")

    def write_call(self, d: int, a: int) -> None:
        self.put(f"call.uni (%r{d}), mixed, (%r{a});")

    def write_work(self, which: int, d: int, a: int, form: str, guard: Any) -> None:
        """Call a function; one that calls itself does so a few times."""
        if which >= len(self.forms):
            return self.write_call(d, a)
        past = self.label()
        if which == self.own:
            self.put("setp.lt.s32 %p4, %r35, 1;")
            self.put(f"@%p4 bra {past};")
        self.put(f"sub.s32 %r30, {'%r35' if which == self.own else '2'}, {1 if which == self.own else 0};")
        given = ("%rd1", "%rd2", "%rd3", "%r31", f"%r{a}", "%r30")
        if self.forms[which] == "reg":
            self.put(f"{_guarded(guard)}call (%r{d}), work{which}, ({', '.join(given)});")
        else:
            self.put("{")
            for number, name in enumerate(given):
                self.put(f".param .b{64 if number < 3 else 32} given{number};")
                self.put(f"st.param.b{64 if number < 3 else 32} [given{number}], {name};")
            self.put(".param .align 4 .b8 back[8];")
            self.put(f"{_guarded(guard)}call (back), work{which}, ({', '.join(f'given{n}' for n in range(6))});")
            # What comes of a call that is not made nobody knows.
            taken = f"{_guarded(guard)}mov.b32 %r{d}, %r29;"
            self.put("ld.param.b32 %r29, [back+4];")
            if form == "braces":
                self.put(taken)
            self.put("}")
            if form != "braces":
                self.put(taken)
        if which == self.own:
            self.put(f"{past}:")
        return None

    def write_end(self, how: str, guard: tuple[bool, int]) -> None:
        self.put(f"{_guarded(guard)}{how};")

    def write_if(self, p: int, negated: bool, then: Any, other: Any) -> None:
        past, end = self.label(), self.label()
        self.put(f"@{'' if negated else '!'}%p{p} bra {past};")
        self.nodes(then)
        if other is not None:
            self.put(f"bra.uni {end};")
        self.put(f"{past}:")
        if other is not None:
            self.nodes(other)
            self.put(f"{end}:")

    def write_loop(self, times: int, body: Any) -> None:
        if self.depth == 2:
            return self.nodes(body)
        counter, again = f"%r{32 + self.depth}", self.label()
        self.depth += 1
        self.put(f"mov.u32 {counter}, 0;")
        self.put(f"{again}:", HEAD)
        self.nodes(body)
        self.depth -= 1
        self.put(f"add.s32 {counter}, {counter}, 1;")
        self.put(f"setp.lt.u32 %p4, {counter}, {times};")
        self.put(f"@%p4 bra {again};")
        return None

    def write_range(self, body: Any) -> None:
        name = f"r{self.label()}"
        self.lines.append(f"\n\t// neutrino begin {name}\n\t{BEGIN}\n")
        self.nodes(body)
        self.lines.append(f"\n\t// neutrino end {name}\n\t{END}\n")

    def write_switch(self, a: int, cases: Any) -> None:
        table, end = self.label(), self.label()
        labels = [self.label() for _ in cases]
        self.put(f"rem.u32 %r30, %r{a}, {len(cases)};")
        self.put(f"{table}: .branchtargets {', '.join(labels)};")
        self.put(f"brx.idx %r30, {table};")
        for label, body in zip(labels, cases, strict=True):
            self.put(f"{label}:")
            self.nodes(body)
            self.put(f"bra {end};")
        self.put(f"{end}:")

    def write_scope(self, body: Any, d: int) -> None:
        self.put("{")
        self.put(f".reg .b32 %r{d};")
        self.put(f"mov.u32 %r{d}, {d + 5};")
        self.nodes(body)
        self.put(f"st.global.u32 [%rd2+60], %r{d};")
        self.put("}")


def _guarded(guard: tuple[bool, int] | None) -> str:
    return "" if guard is None else f"@{'!' if guard[0] else ''}%p{guard[1]} "


_GIVEN = (
    ("b64", "%rd1"), ("b64", "%rd2"), ("b64", "%rd3"), ("b32", "%r31"), ("b32", "%r0"), ("b32", "%r35"),
)  # fmt: skip
"""Types of a function's parameters, and the registers that they go to."""
_FUNCTION = """.func ({result}) work{number}({given})
{{
	.reg .pred %p<5>;
	.reg .b16 %h<1>;
	.reg .b32 %r<36>;
	.reg .f32 %f<3>;
	.reg .b64 %rd<8>;
	{moves}
	mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, 3; mov.u32 %r4, %ctaid.x; mov.u32 %r5, 5;
	and.b32 %r6, %r0, 13; mov.u32 %r7, %tid.x;
	setp.gt.s32 %p0, %r6, 4; setp.lt.s32 %p1, %r7, 11; setp.eq.s32 %p2, %r35, 1; setp.ne.s32 %p3, %r4, 0;
	{body}
	{ending}
}}
"""


def _function(number: int, form: str, body: str, ending: str) -> str:
    space = ".reg" if form == "reg" else ".param"
    moves = " ".join(
        f"mov.{kind} {register}, g{number};" if form == "reg" else f"ld.param.{kind} {register}, [g{number}];"
        for number, (kind, register) in enumerate(_GIVEN)
    )
    result = ".reg .b32 result" if form == "reg" else ".param .align 4 .b8 result[8]"
    moves += " mov.b32 result, 17;" if form == "reg" else " st.param.b32 [result+4], 17;"
    given = ", ".join(f"{space} .{kind} g{number}" for number, (kind, _) in enumerate(_GIVEN))
    return _FUNCTION.format(result=result, number=number, given=given, moves=moves, body=body, ending=ending)


_MODULE = """.version 8.0
.target sm_80
.address_size 64
.func (.reg .u32 %result) mixed(.reg .u32 %given)
{{
	and.b32 %result, %given, 7;
	not.b32 %given, %given;
	or.b32 %result, %result, %given;
	ret;
}}
{functions}.visible .entry random(.param .u64 in, .param .u64 out, .param .u64 total, .param .u32 n)
{{
	.reg .pred %p<5>;
	.reg .b16 %h<1>;
	.reg .b32 %r<36>;
	.reg .f32 %f<3>;
	.reg .b64 %rd<8>;
	.shared .align 4 .b8 tile[{tile}];
	ld.param.u64 %rd1, [in];
	add.s64 %rd1, %rd1, 16;
	ld.param.u64 %rd2, [out];
	ld.param.u64 %rd3, [total];
	ld.param.u32 %r7, [n];
	mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.y;
	mad.lo.s32 %r0, %r2, %r1, %r0;
	mov.u32 %r31, tile; shl.b32 %r3, %r0, 4; add.s32 %r31, %r31, %r3;
	st.shared.u32 [%r31], %r0; st.shared.u32 [%r31+4], %r1; st.shared.u32 [%r31+8], 3; st.shared.u32 [%r31+12], 4;
	mov.u32 %r4, %ctaid.x;
	mad.lo.s32 %r5, %r4, {threads}, %r0;
	mul.wide.s32 %rd4, %r5, 64;
	add.s64 %rd2, %rd2, %rd4;
	and.b32 %r6, %r5, 13;
	setp.gt.s32 %p0, %r6, 4; setp.lt.s32 %p1, %r5, %r7; setp.eq.s32 %p2, %r3, 0; setp.ne.s32 %p3, %r4, 0;
	{body}
	{ending}
}}
"""


@st.composite
def kernels(draw: st.DrawFn, *, witnesses: bool = False) -> Kernel:
    """A kernel over two blocks of 24 x 3 threads. witnesses: with marks of ranges, and as ``_Writer`` says."""

    def witnessed(ending: str) -> str:
        return ending.replace(";\n", f";\n\t{WITNESS}\n") if witnesses else ending

    spacings = draw(st.lists(_spacing, min_size=1, max_size=3))
    forms: list[str] = []
    functions = ""
    for number in range(draw(st.integers(0, 2))):
        forms.append(draw(st.sampled_from(("reg", "param"))))
        called = _Writer(spacings, forms, number, witnesses=witnesses)
        called.nodes(draw(_MARKED if witnesses else _CALLED))
        last = draw(st.sampled_from(("ret;", "", "@%p1 exit;", "@!%p0 ret;\n\tld.global.u32 %r1, [%rd1];")))
        functions += _function(number, forms[-1], "".join(called.lines), witnessed(last))
    writer = _Writer(spacings, forms, witnesses=witnesses)
    nodes = draw(_MARKED if witnesses else _BODY)
    for number in range(len(forms)):
        nodes.insert(draw(st.integers(0, len(nodes))), draw(_work(st.just(number))))
    writer.nodes(nodes)
    writer.put("st.global.u32 [%rd2+56], %r2;")
    ending = draw(st.sampled_from(("ret;", "exit;", "@%p1 exit;", "", "@!%p0 ret;\n\tst.global.u32 [%rd2+52], %r1;")))
    body = "".join(writer.lines)
    ending = witnessed(ending)
    text = _MODULE.format(functions=functions, body=body, ending=ending, threads=_THREADS, tile=16 * _THREADS)
    values = np.random.default_rng(7).integers(0, 1 << 32, _CELLS * 2 + 16, np.uint32)
    output = np.zeros((2 * _THREADS, 16), np.uint32)
    arguments = (values, output, np.zeros(1, np.uint32), np.uint32(101))
    return Kernel("random", text, "random", (2, 1, 1), (24, 3, 1), arguments)
