"""Probe files in Python: what is wrong is said where it is, and nothing in them is ever run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.ir.operands import Constant, Special
from neutrino.ir.statements import ClockAfter, Load, Operation
from neutrino.ir.types import Type
from neutrino.language.faults import FAULTS, MAX_FAULTS
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, walk
from neutrino.probing.model import Lanes
from neutrino.verification import load_probe_file, load_probes
from tests.fronts import read_python_text
from tests.oracle.typed import BLOCK, kernel, run

HEAD = """from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="array", size=8)
class M:
    value: nl.u64

shared: nl.u64 = 0
"""


def at_load(body: str, position: str = "ld.global") -> str:
    """A file with one probe, whose lines these are."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return f'{HEAD}\n@probe(pos="{position}", level="thread")\ndef p():\n{lines}\n    M.save(1)\n'


def with_function(function: str, body: str) -> str:
    """A file with functions of its own, and one probe with these lines."""
    return HEAD + function + at_load(body).removeprefix(HEAD)


DEFINES = {"LIMIT": 2.5}
WRONG: dict[str, tuple[str, str, str]] = {
    "a parenthesis": (at_load("x = ¦(1"), "not-python", "was never closed"),
    "a NUL byte": (at_load("x = ¦\0"), "not-python", "a NUL byte"),
    "a while without a bound": (at_load("¦while 1: pass"), "python-statement", "a while of a probe has a bound"),
    "a bound in an or": (at_load("¦while nl.bound(8) or shared: pass"), "python-statement", "has a bound, and no else"),
    "a while with an else": (at_load("¦while nl.bound(8): pass\nelse: pass"), "python-statement", "and no else"),
    "a bound that is computed": (at_load("while nl.bound(¦shared): pass"), "python-expression", "'shared' is not a"),
    "a bound of too many": (at_load("¦while nl.bound(1000): shared = 1"), "ir-loop", "at most 1,000 turns"),
    "a sum of two": (at_load("x = ¦nl.warp.sum(shared, 1)"), "python-call", "'nl.warp.sum' takes one value"),
    "an unknown reduction": (at_load("x = ¦nl.warp.mean(shared)"), "python-call", "'nl.warp.mean' is called"),
    "a sum of floats": (at_load("y: nl.f32 = 1.0\nx = ¦nl.warp.sum(y)"), "ir-operator", "no 'sum' between lanes"),
    "no modifier": (at_load("if nl.has(¦shared): pass"), "python-call", "has takes a type, or a text"),
    "an unknown modifier": (at_load("if ¦nl.has('f33'): shared += 1"), "unknown-modifier", "PTX has 'f33'"),
    "a clock before": (at_load("x = ¦nl.clock(before=shared)"), "python-call", "no other argument than after"),
    "a clock after nothing known": (at_load("x = nl.clock(after=¦nl.out)"), "python-type", "'nl.out' has no type"),
    "bits of a predicate": (at_load("x = nl.bits(¦shared > 1)"), "python-type", "a predicate has no bits"),
    "bits of another width": (at_load("x: nl.f32 = ¦nl.bits(shared)"), "python-type", "64 bits as f32, which has 32"),
    "a fourth axis": (at_load("x = ¦nl.tid.w"), "python-expression", "'nl.tid.w' in a probe"),
    "a clock that is not called": (at_load("x = ¦nl.clock"), "python-name", "no value 'clock'"),
    "return": (at_load("¦return"), "python-statement", "'return' in a probe"),
    "a function inside": (at_load("¦def f(): pass"), "python-statement", "'def' in a probe"),
    "a declaration": (at_load("¦x: nl.u32"), "python-statement", "a declaration without a value in a probe"),
    "two targets": (at_load("¦x = y = 1"), "python-statement", "an assignment in a probe"),
    "a tuple": (at_load("¦x, y = 1, 2"), "python-statement", "assigns to names alone"),
    "an element that is changed": (at_load("¦x[0] += 1"), "python-statement", "assigns to names alone"),
    "an element": (at_load("¦x[0] = 1"), "python-statement", "assigns to names alone"),
    "a loop over a list": (at_load("¦for i in [1]: pass"), "python-statement", "over range(…)"),
    "code at the top": (HEAD + "¦print(1)\n", "python-statement", "an expression at the top"),
    "an assignment to two names": (HEAD + "¦x = y = 1\n", "python-statement", "a constant is one name"),
    "a constant that is computed": (HEAD + "x = ¦shared\n", "python-name", "shared has no value here"),
    "a constant of a site": (HEAD + "x = ¦nl.out\n", "python-expression", "a constant is a number"),
    "a callback that is none": (HEAD + "CALLBACK = ¦3\n", "script", "CALLBACK is 3"),
    "another import": ("¦import os\n", "python-statement", "'import os'"),
    "a star": ("¦from neutrino import *\n", "python-statement", "'from neutrino import *'"),
    "a relative import": ("¦from .neutrino import probe\n", "python-statement", "'from .neutrino import probe'"),
    "no probe": ("¦import neutrino.language as nl\n", "python-statement", "no probe in the file"),
    "an empty probe": (HEAD + '\n@probe(pos="ld", level="thread")\n¦def p(): pass\n', "python-statement", "nothing"),
    "arguments": (HEAD + '\n@probe(pos="ld", level="thread")\n¦def p(x): pass\n', "python-statement", "no arguments"),
    "a float as an integer": (at_load("x: nl.u32 = ¦nl.out()", position="ld.global.f32"), "helper-type",
                              "OUT of ld.global.f32 is f32, and goes into no register of u32"),
    "a list": (at_load("x: nl.u32 = ¦[1]"), "python-expression", "'[1]' in a probe"),
    "a text": (at_load("x: nl.u32 = ¦'a'"), "python-expression", "in a probe"),
    "a power": (at_load("x: nl.u32 = ¦2 ** 3"), "python-expression", "'2 ** 3' in a probe"),
    "a fraction": (at_load("x: nl.f32 = ¦1 / 2"), "python-expression", "'/' in a probe"),
    "a shift of very many": (at_load("x: nl.u64 = ¦1 << 1000000000"), "python-expression", "shifts by 1000000000"),
    "a shift by 64": (at_load("x: nl.u64 = ¦1 << 64"), "python-expression", "shifts by 64"),
    "divided by 0": (at_load("x: nl.u64 = ¦1 // 0"), "python-expression", "division"),
    "an unknown end": (at_load("for i in range(¦shared): pass"), "python-expression", "whole numbers"),
    "a computed argument": (HEAD + "\n@probe(pos=¦f(), level='thread')\ndef p(): pass\n", "python-expression",
                            "'f()' is no constant"),
    "an unknown name": (at_load("x = ¦y + 1"), "python-name", "y has no value here"),
    "a local of another probe": (at_load("if shared > 1: x = shared\n_ = ¦z"), "python-name", "z has no value"),
    "two registers": (HEAD + "¦shared: nl.u32 = 1\n", "python-name", "shared stands for something else"),
    "a map like a register": (HEAD + '@Map(level="warp")\n¦class shared:\n    a: nl.u32\n', "python-name",
                              "shared stands for something else"),
    "two probes": (at_load("x = shared") + '\n@probe(pos="ld", level="thread")\n¦def p(): M.save(2)\n', "python-name",
                   "p stands for something else"),
    "a special register's name": (HEAD + "¦clock: nl.u64 = 0\n", "python-name", "cannot be called clock"),
    "letters beyond ASCII": (HEAD + "¦zähler: nl.u64 = 0\n", "python-name", "cannot be called zähler"),
    "a loop over what is shared": (at_load("for ¦shared in range(2): pass"), "python-name", "all probes share"),
    "the language assigned": (at_load("¦nl = shared"), "python-name", "nl is no variable"),
    "a map assigned": (at_load("¦M = shared"), "python-name", "M is no variable"),
    "a number without a type": (at_load("x = ¦5"), "python-type", "x has no type"),
    "a site's value without a type": (at_load("x = ¦nl.out()"), "python-type", "x has no type"),
    "a shift without a type": (at_load("x = (¦1 << shared) + shared"), "python-type", "has no type"),
    "a comparison without a type": (at_load("if ¦nl.out > 1: shared = 1"), "python-type", "'nl.out > 1' has no type"),
    "a number that does not fit": (at_load("x: nl.u8 = ¦256"), "python-type", "256 does not fit in u8"),
    "a negative number": (at_load("x: nl.u8 = ¦-2"), "python-type", "-2 does not fit in u8"),
    "a large number": (at_load(f"x: nl.u64 = ¦0x{'f' * 20000}"), "python-type", "a number of many digits does not fit"),
    "a fraction as an integer": (at_load("x: nl.u32 = ¦1.5"), "python-type", "1.5 does not fit in u32"),
    "a large fraction": (at_load("x: nl.f16 = ¦70000.0"), "python-type", "70000.0 does not fit in f16"),
    "the largest": (at_load("x: nl.bf16 = ¦1.797e308"), "python-type", "1.797e+308 does not fit in bf16"),
    "two signs": (at_load("x: nl.s64 = nl.s64(1)\ny = ¦x + shared"), "python-type", "s64 and u64"),
    "no type": (at_load("x: ¦int = 1"), "python-type", "'int' is no type"),
    "another type": (at_load("x: nl.u32 = 1\n¦x: nl.u64 = 2"), "python-type", "x is u32, and cannot become u64"),
    "no decorator": (HEAD + "\n¦def p(): pass\n", "python-decorator", "function p is no probe, and no probe calls it"),
    "a position with a fault inside": (HEAD + '\n@probe(pos="ld.global | ¦LD", level="warp")\ndef p(): pass\n',
                                       "position", "'LD' is no pattern"),
    "a fault inside three quotes": (HEAD + '\n@probe(level="warp", pos=r"""ld !!¦""")\ndef p(): pass\n', "position",
                                    "a pattern is missing at the end"),
    "a fault after an escape": (HEAD + '\n@probe(level="warp", pos=¦"l\\x64 !!")\ndef p(): pass\n', "position",
                                "a pattern is missing at the end"),
    "lanes that are none": (HEAD + '\n@probe(pos="ld", level="warp", lanes=¦"all")\ndef p(): pass\n',
                            "python-decorator", "the lanes of probe p"),
    "a size without a save": (HEAD + '\n@probe(pos="ld", level="warp", size=¦8)\ndef p(): shared = 1\n',
                              "python-decorator", "'size' is of what nl.save saves"),
    "a record of another size": (HEAD + '\n@nl.probe(pos="ld", level="warp", size=¦16)\ndef p():\n'
                                 "    nl.save(shared, dtype=nl.u64)\n", "python-map", "size is 16, but"),
    "another cap": (HEAD + '\n@nl.probe(pos="ld", level="warp", cap=¦0)\ndef p(): nl.save(shared, dtype=nl.u64)\n',
                    "python-map", "cap is 0"),
    "a save without a dtype": (at_load("¦nl.save(shared)"), "python-call", "one value or tuple, and a dtype"),
    "a save of two values": (at_load("¦nl.save(shared, 1, dtype=nl.u64)"), "python-call", "one value or tuple"),
    "a save of nothing": (at_load("nl.save(¦(), dtype=nl.u64)"), "python-call", "the save saves nothing"),
    "a save of halves": (at_load("nl.save(shared, dtype=¦nl.f16)"), "python-type", "no field can be f16"),
    "a save of no type": (at_load("nl.save(shared, dtype=¦8)"), "python-type", "'8' is no type"),
    "a second record": (at_load("nl.save(1, dtype=nl.u32)\nif shared > 1: ¦nl.save(2, dtype=nl.u32)"), "python-call",
                        "a second record"),
    "two decorators": (HEAD + "\n@f\n@probe(pos='ld')\n¦def p(): pass\n", "python-decorator", "has 2 decorators"),
    "an unknown argument": (HEAD + "\n@probe(¦at='ld')\ndef p(): pass\n", "python-decorator", "argument 'at'"),
    "arguments by a table": (HEAD + "\n@probe(¦**x)\ndef p(): pass\n", "python-decorator", "'**'"),
    "no position": (HEAD + "\n@¦probe(level='warp')\ndef p(): pass\n", "python-decorator", "has no position"),
    "a position that is none": (HEAD + "\n@probe(pos='¦', level='warp')\ndef p(): pass\n", "position", "empty"),
    "a level that is none": (HEAD + "\n@probe(pos='ld', level=¦['warp'])\ndef p(): pass\n", "python-decorator",
                             "the level of probe p is"),
    "no level": (HEAD + "\n@¦probe(pos='ld')\ndef p(): pass\n", "python-decorator", "has no level"),
    "both sides": (HEAD + "\n@¦probe(pos='ld', level='warp', before=True, after=True)\ndef p(): pass\n",
                   "python-decorator", "before or after"),
    "a side that is none": (HEAD + "\n@probe(pos='ld', level='warp', after=¦'yes')\ndef p(): pass\n",
                            "python-decorator", "'after' is"),
    "a map without its decorator": (HEAD + "\n¦class N:\n    a: nl.u32\n", "python-decorator", "class N is no map"),
    "a map of another size": (HEAD + "\n@Map(level='warp', size=¦3)\nclass N:\n    a: nl.u32\n", "python-map",
                              "size is 3"),
    "a map of another level": (HEAD + "\n@Map(level=¦{1, 2})\nclass N:\n    a: nl.u32\n", "python-map", "level is"),
    "a map of another type": (HEAD + "\n@Map(level='warp', type=¦'a\": \"b, \"')\nclass N:\n    a: nl.u32\n",
                              "python-map", "type of a map"),
    "a map per thread at another level": (
        HEAD + "\n@Map(level='block', type='sum', per=¦'warp')\nclass N:\n    a: nl.u32\n", "python-map",
        "at level block one thread saves for its block",
    ),
    "a map without a level": (HEAD + "\n@Map()\n¦class N:\n    a: nl.u32\n", "python-map", "no level"),
    "a map without fields": (HEAD + "\n@Map(level='warp')\nclass N:\n    ¦pass\n", "python-map", "a map has fields"),
    "a field of halves": (HEAD + "\n@Map(level='warp')\nclass N:\n    a: ¦nl.f16\n", "python-map", "type of field 'a'"),
    "a field twice": (HEAD + "\n@Map(level='warp')\nclass N:\n    a: nl.u32\n    ¦a: nl.u32\n", "python-map", "second"),
    "a function called": (at_load("x: nl.u32 = ¦f(1)"), "python-call", "'f' is called"),
    "an unknown helper": (at_load("x: nl.u32 = ¦nl.f()"), "python-call", "'nl.f' is called"),
    "another map": (at_load("¦N.save(1)"), "python-call", "'N.save' is called"),
    "too many values": (at_load("¦M.save(1, 2)"), "python-call", "2 values for the 1 fields"),
    "range of nothing": (at_load("for i in ¦range(): pass"), "python-call", "range takes"),
    # Constants and values of -D.
    "a constant of another type": ("¦LIMIT = 4\n", "python-define", "-D LIMIT=2.5, but LIMIT is a whole number"),
    "a constant assigned": (HEAD + "MOST = 4\n" + at_load("¦MOST = 5").removeprefix(HEAD), "python-name",
                            "MOST is a constant"),
    # Values of instructions, and functions of the language.
    "an element of an address": (at_load("x: nl.u32 = ¦nl.addr.y"), "python-expression", "'nl.addr.y' is no value"),
    "an element of an element": (at_load("x: nl.u32 = ¦nl.out.y.x"), "python-expression", "is no value of an"),
    "an element far off": (at_load("x: nl.u32 = ¦nl.out[128]"), "python-expression", "'nl.out[128]' is no value"),
    "an element that is computed": (at_load("x: nl.u32 = nl.out[¦shared]"), "python-expression", "'shared' is not a"),
    "an unknown value": (at_load("x: nl.u32 = ¦nl.in0"), "python-name", "no value 'in0'"),
    "the smallest of one": (at_load("x = ¦nl.min(shared)"), "python-call", "nl.min takes 2 or more values"),
    "a count of two": (at_load("x = ¦nl.popc(shared, 1)"), "python-call", "nl.popc takes 1 value"),
    "a count of a float": (at_load("y: nl.f32 = 1.0\nx = nl.clz(¦y)"), "python-type", "nl.clz of f32"),
    "Python's own min": (at_load("x = ¦min(shared, 3)"), "python-call", "'min' is called"),
    "a 64-bit division": (at_load("x = shared // ¦shared"), "python-type", "64-bit integers have no '//'"),
    "a 64-bit division by nothing": (at_load("x = shared % ¦0"), "python-expression", "a division by 0"),
    # Arrays.
    "an array without a size": (at_load("a = ¦nl.array(nl.u32)"), "python-call", "a type and a number of elements"),
    "an array of nothing": (at_load("a = nl.array(nl.u32, ¦0)"), "python-expression", "an array of 0 elements"),
    "an array with a type": (at_load("¦a: nl.u32 = nl.array(nl.u32, 4)"), "python-type", "without an annotation"),
    "two arrays": (at_load("a = nl.array(nl.u32, 4)\na = ¦nl.array(nl.u32, 5)"), "python-type", "something else"),
    "an array as a number": (at_load("a = nl.array(nl.u32, 4)\nx = ¦a + 1"), "python-type", "a is an array"),
    "beyond an array": (at_load("a = nl.array(nl.u32, 4)\na[¦4] = 1"), "python-expression", "element 4 of an array"),
    "a float index": (at_load("a = nl.array(nl.u32, 4)\ny: nl.f32 = 1.0\nx = a[¦y]"), "python-type", "this is f32"),
    "an unrolled variable": (at_load("a = nl.array(nl.u32, 4)\n¦for i in range(4):\n    a[i] = 1\n    i = 2"),
                             "python-name", "i is the variable of a loop"),
    # The file's own functions.
    "recursion": (with_function("def f(x):\n    return ¦f(x)\n", "y = f(shared)"), "python-call", "f calls itself"),
    "mutual recursion": (with_function("def f(x):\n    return g(x)\ndef g(x):\n    return ¦f(x)\n", "y = f(shared)"),
                         "python-call", "f calls itself"),
    "too few values": (with_function("def f(x, y):\n    return x + y\n", "z = ¦f(1)"), "python-call",
                       "1 values for the 2 parameters of f"),
    "a default": (with_function("¦def f(x=1):\n    return x\n", "z = f(1)"), "python-statement", "one by one"),
    "no result": (with_function("def f(x):\n    y = x\n", "z = ¦f(shared)"), "python-call", "f returns nothing"),
    "a result of some ways": (with_function("¦def f(x):\n    if x > 1:\n        return x\n", "z = f(shared)"),
                              "python-statement", "on some ways through it only"),
    "a return in a loop": (with_function("def f(x):\n    ¦for i in range(2):\n        return x\n    return x\n",
                                         "z = f(shared)"), "python-statement", "a return inside a loop"),
    "a return in a half": (with_function("def f(x):\n    ¦if x > 1:\n        if x > 2:\n            return x\n"
                                         "    return x\n", "z = f(shared)"), "python-statement", "may also go on"),
    "after a return": (with_function("def f(x):\n    return x\n    ¦y = x\n", "z = f(shared)"), "python-statement",
                       "a statement after return"),
    "a save with a result": (with_function("def f(x):\n    M.save(x)\n    return x\n", "z = ¦f(shared)"), "python-call",
                             "f saves, or assigns a register"),
    "an own save in a function": (with_function("def f(x):\n    ¦nl.save(x, dtype=nl.u32)\n", "f(shared)"),
                                  "python-call", "a save in function f"),
    "a number that is assigned": (with_function("def f(x):\n    x += 1\n    return x\n", "z = f(¦5)"), "python-type",
                                  "x is assigned in f, and has no type"),
    "a function as a variable": (with_function("def f(x):\n    return x\n", "¦f = f(shared)"), "python-name",
                                 "f is no variable"),
    "global of a local": (at_load("¦global y\nx = shared"), "python-name", "y is no register that all probes share"),
    "many statements": (with_function("def f(x):\n" + "    x = x + 1\n" * 14 + "    ¦x = x + 1\n"
                                      + "    x = x + 1\n" * 85 + "    return x\n", "y = f(shared)\n" * 60),
                        "python-statement", "more than 4096 statements"),
    "many calls": (with_function("def f(x):\n    return x\n", "y = f(shared)\n" * 1024 + "y = ¦f(shared)"),
                   "python-call", "more than 1024 calls"),
    # Of the IR and of PTX.
    "unassigned": (at_load("if shared > 1: x = shared\ny = ¦x + 1"), "ir-unassigned", "x may have no value here"),
    "for ever": (at_load("for i in range(0, 5, ¦0): shared = 1"), "python-statement", "has no end"),
    "very long": (at_load(f"¦for i in range({10**30}): shared = 1"), "ir-loop", "turns"),
    "many fractions": (at_load("x: nl.f32 = 1.0\ny = ¦x // x"), "ir-operator", "values of f32 have no 'div'"),
    "OUT before": (HEAD + "\n@probe(pos='ld', level='thread', before=True)\ndef p(): M.save(¦nl.out())\n",
                   "out-in-before", "OUT in 'before'"),
    "no third input": (at_load("x: nl.u32 = ¦nl.in3()"), "operand-absent", "no IN3"),
    "an unknown instruction": (at_load("x = shared", "¦lod"), "unknown-opcode", "no instruction 'lod'"),
}  # fmt: skip
"""Name → the file with a mark at the fault, its code, words of its message."""


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_said_where_it_is(name: str, tmp_path: Path) -> None:
    marked, code, words = WRONG[name]
    before, _, after = marked.partition("¦")
    path = tmp_path / "p.py"
    path.write_text(before + after, newline="")
    with pytest.raises(ProbeError) as caught:
        load_probes([str(path)], defines=DEFINES)
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    found = {(fault.line, fault.column): fault for fault in caught.value.diagnostics}
    assert place in found, caught.value
    fault = found[place]
    assert fault.code == code
    assert words in fault.message
    assert fault.source == (before + after).split("\n")[place[0] - 1]
    # What follows from a fault is not said.
    assert len(caught.value.diagnostics) == 1, caught.value


def test_every_fault_is_provoked() -> None:
    assert {code for _, code, _ in WRONG.values()} >= set(FAULTS)


# Hostile input


def _faults(path: Path, data: bytes | str) -> tuple[Diagnostic, ...]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ProbeError) as caught:
        load_probe_file(path)
    return tuple(caught.value.diagnostics)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the top, nor in decorators, defaults, annotations, or what a map or a probe holds."""
    mark = tmp_path / "mark"
    write = f"open({str(mark)!r}, 'w').close()"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "evil.py").write_text(write)
    for text in (
        write, f"import evil\n{write}", f"from evil import *\n{at_load('x = shared')}",
        f"@probe(pos={write}, level='warp')\ndef p(): pass", f"def p(x={write}): pass", f"x: {write} = 1",
        f"@{write}\ndef p(): pass", f"class A({write}): pass", f"@Map(level={write})\nclass A:\n    a: {write}",
        at_load(write), at_load(f"shared = {write}"), at_load(f"x: {write} = 1"), at_load(f"[{write} for i in [1]]"),
        at_load(f"f'{{{write}}}'"), at_load(f"shared = (lambda: {write})()"), at_load(f"if {write}: pass"),
        at_load(f"M.save({write})"), f"if 1:\n    {write}\n", f"__import__('evil')\n{HEAD}",
    ):  # fmt: skip
        _faults(tmp_path / "p.py", text)
        assert not mark.exists(), text
    assert "evil" not in sys.modules


LONG = 400_000


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        (lambda: "\n" * 600_000, {"too-large"}),
        (lambda: b"\xff\xfe" + HEAD.encode("utf-16-le"), {"not-utf-8"}),
        (lambda: HEAD.encode() + b"# \xe4\n", {"not-utf-8"}),
        (lambda: "(" * LONG, {"not-python"}),
        (lambda: at_load("x = " + "-" * 5000 + "shared"), {"not-python", "python-expression"}),
        (lambda: at_load("x = " + "not " * 3000 + "shared"), {"not-python", "python-expression"}),
        (lambda: at_load("shared = " + "shared + " * 20_000 + "1"), {"not-python", "python-expression"}),
        (lambda: at_load("shared = " + "shared + " * 300 + "1"), {"ir-budget"}),
        (lambda: at_load("if shared == 0: pass\n" + "elif shared == 1: shared = 2\n" * 60), {"ir-budget"}),
        (lambda: at_load("if shared == 0: pass\n" + "elif shared == 1: shared = 2\n" * 2000),
         {"ir-budget", "python-expression", "not-python"}),
        (lambda: at_load("x = y\n" * 20_000), {"python-name"}),
        (lambda: at_load("x = ä;" * 20_000 + "pass"), {"python-name"}),
        (lambda: "x = 1\n" * 60_000, {"python-name"}),
        (lambda: at_load("shared = " + "9" * 10_000), {"not-python", "python-type"}),
        (lambda: HEAD.replace("= 0", "= 0x" + "f" * 9000), {"python-type"}),
        (lambda: HEAD + f"@Map(level='warp', cap=0x{'f' * 9000})\nclass N:\n    a: nl.u32\n", {"python-map"}),
        (lambda: HEAD + f"@probe(pos='{'a.' * 9000}', level=0x{'f' * 9000})\ndef p(): pass\n", None),
        (lambda: HEAD + "@probe(pos=(" + "'ld' " * 9000 + "), level='warp')\ndef p(): M.save(1)\n", None),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(make: Callable[[], str | bytes], codes: set[str] | None, tmp_path: Path) -> None:
    found = _faults(tmp_path / "p.py", make())
    assert 0 < len(found) <= MAX_FAULTS
    if codes is not None:
        assert {fault.code for fault in found} <= codes
    for fault in found:
        assert fault.message.isprintable()
        assert len(fault.message) < 700


def test_columns_count_characters(tmp_path: Path) -> None:
    (fault,) = _faults(tmp_path / "p.py", at_load("ä = 'ääää'; y = zz").replace("ä = 'ääää'", "'ääää𝄞'"))
    assert (fault.column, fault.message) == (5 + len("'ääää𝄞'; y = "), "zz has no value here")


def test_line_ends_and_marks_of_editors() -> None:
    text = at_load("x = shared\ny = x + z")
    places = set()
    for other in (text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text):
        with pytest.raises(ProbeError) as caught:
            read_python_text("p.py", other)
        places.add(tuple((fault.line, fault.column, fault.source) for fault in caught.value.diagnostics))
    assert places == {((13, 13, "    y = x + z"),)}


def test_warnings_of_python_are_not_the_users(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "p.py"
    path.write_text(at_load("'\\d'\nx = shared"))
    load_probe_file(path)
    assert not recwarn.list


# Meaning


def test_a_chain_reads_its_middle_once(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(at_load("if 0 < nl.clock() < shared: shared = 1"))
    (probe,) = load_probe_file(path).probes
    assert probe.after is not None
    operations = [item for item in walk(probe.after.statements) if isinstance(item, Operation)]
    assert [item.sources for item in operations].count((Special.CLOCK,)) == 1


def test_an_address_is_64_bits_and_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(at_load("low = nl.u32(nl.addr())\nwhole = nl.addr()\nM.save(whole + low)"))
    assert load_probe_file(path).probes


@pytest.mark.parametrize(
    ("written", "bits"),
    [("1.0", 0x3F80), ("0.1", 0x3DCD), ("1.00390625", 0x3F80), ("1.01171875", 0x3F82), ("1e-40", 0x0001),
     ("3.3895e38", 0x7F7F), ("-0.0", 0x8000), ("1e-45", 0)],
)  # fmt: skip
def test_numbers_are_rounded_to_bf16(written: str, bits: int) -> None:
    draft = read_python_text("p.py", HEAD + f"x: nl.bf16 = {written}\n" + at_load("y = x").removeprefix(HEAD))
    (register,) = [item for item in draft.registers if item.name == "%x"]
    assert register.initial == bits


def test_both_sides_are_named_or_meant() -> None:
    sides = {}
    for decorator, words in (("probe", ""), ("nl.probe", ""), ("probe", ", before=True"), ("probe", ", after=False")):
        text = HEAD + f'@{decorator}(pos="ld", level="thread"{words})\ndef p():\n    M.save(1)\n'
        (probe,) = read_python_text("p.py", text).probes
        sides[decorator + words] = "before" if probe.before else "after"
    assert sides == {
        "probe": "after", "nl.probe": "before", "probe, before=True": "before", "probe, after=False": "before",
    }  # fmt: skip


def test_maps_warn_as_in_toml() -> None:
    text = HEAD + '@Map(level="warp")\nclass N:\n    a: nl.u8\n    b: nl.u64\n' + at_load("").removeprefix(HEAD)
    (warning,) = read_python_text("p.py", text).warnings
    assert (warning.code, warning.line, warning.severity) == ("padding", 10, "warning")


def test_with_a_file_in_toml(tmp_path: Path) -> None:
    """Both are lowered, and registers of one name stay apart."""
    path, other = tmp_path / "p.py", tmp_path / "q.toml"
    path.write_text(at_load("x: nl.u8 = 200\nshared = x + 100", "xor"))
    other.write_text(
        '[map.N]\nlevel = "thread"\ndata = { a = "u64" }\n[probe.q]\nposition = "xor"\nlevel = "thread"\n'
        'before = """.reg .u64 %shared = 9, %$u8_1; .reg .b16 %$u16_1; mov.u64 %$u8_1, 7; '
        'add.u64 %shared, %shared, %$u8_1; SAVE [ N ] { %shared };"""\n'
    )
    words = np.arange(BLOCK, dtype=np.uint32)
    for names in ([path, other], [other, path]):
        probes: ProbeSet = load_probes([str(name) for name in names])
        views = run(probes, kernel(words, words))
        assert set(views["N"].records["a"].reshape(-1).tolist()) == {16}
        assert set(views["M"].records["value"].reshape(-1).tolist()) == {1}


def test_a_number_saved_is_a_constant() -> None:
    (probe,) = read_python_text("p.py", at_load("shared = 1")).probes
    assert probe.after is not None
    (save,) = [item for item in probe.after.statements if isinstance(item, Save)]
    assert save.operands == (Constant(save.operands[0].type, 1),)  # type: ignore[union-attr]


def test_a_callback_is_a_path_beside_the_file(tmp_path: Path) -> None:
    path, script = tmp_path / "p.py", tmp_path / "watch.py"
    script.write_text("")
    path.write_text('CALLBACK = "watch.py"\n' + at_load("shared = 1"))
    assert load_probes([str(path)]).callbacks == (str(script),)
    path.write_text('CALLBACK = ["watch.py", "none.py", "watch.py"]\n' + at_load("shared = 1"))
    probes = load_probes([str(path)])
    assert probes.callbacks == (str(script),)
    (warning,) = probes.warnings
    assert (warning.code, warning.line, warning.column) == ("script-missing", 1, 25)


def test_a_define_changes_a_constant(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(f"LIMIT = 1 << 2\nTWICE = LIMIT * 2\nDEEP = True\n{at_load('if DEEP: shared = LIMIT + TWICE')}")

    def moved(defines: dict[str, int | float]) -> list[object]:
        (probe,) = load_probes([str(path)], defines=defines).probes
        assert probe.after is not None
        return [item.sources for item in walk(probe.after.statements) if isinstance(item, Operation)]

    assert moved({})[-1] == (Constant(Type.U64, 12),)
    assert moved({"LIMIT": 5})[-1] == (Constant(Type.U64, 15),)
    assert moved({"TWICE": 1})[-1] == (Constant(Type.U64, 5),)
    # An if of constants alone leaves nothing behind.
    assert moved({}) == [(Constant(Type.U64, 12),)]
    assert moved({"DEEP": False}) == []
    with pytest.raises(NeutrinoError, match="-D LIMT: no probe file has a constant of that name; did you mean LIMIT"):
        load_probes([str(path)], defines={"LIMT": 5})
    with pytest.raises(NeutrinoError, match="none has any"):
        load_probes(["block_sched"], defines={"LIMIT": 5})


def test_lanes_that_reach(tmp_path: Path) -> None:
    text = at_load("shared += 1").replace("@probe(", '@probe(lanes="reaching", ')
    (probe,) = read_python_text("p.py", text).probes
    assert probe.lanes is Lanes.REACHING
    (probe,) = read_python_text("p.py", at_load("shared += 1")).probes
    assert probe.lanes is Lanes.EXECUTING


def test_elements_of_vectors_and_values_of_sites() -> None:
    names = ["out", "out.y", "out[3]", "in1()", "in2.w", "addr", "bytes()", "ops", "lanes", "site", "pred"]
    body = "\n".join(f"v{index}: nl.u32 = nl.{name}" for index, name in enumerate(names))
    (probe,) = read_python_text("p.py", at_load(body, "ld.global.v4.f32")).probes
    assert probe.after is not None
    loads = [item.operand.text for item in walk(probe.after.statements) if isinstance(item, Load)]
    assert loads == ["OUT", "OUT.y", "OUT.3", "IN1", "IN2.w", "ADDR", "BYTES", "OPS", "LANES", "SITE", "PRED"]


# nl.save


def test_what_a_probe_saves_is_its_map() -> None:
    text = (
        "import neutrino.language as nl\n"
        '@nl.probe(pos="ld.global.v4.f32", level="thread", after=True, cap=3)\ndef p():\n'
        "    n = nl.u32(nl.addr)\n    nl.save((nl.addr, nl.out.y, 7), dtype=nl.u64)\n"
        "    nl.save(n, dtype=nl.u32)\n    nl.save((nl.u32(n), nl.out[3], n + 1), dtype=nl.u32)\n"
    )
    (entry,) = read_python_text("p.py", text).maps
    assert (entry.name, entry.cap, entry.level.value, entry.size) == ("p", 3, "thread", 40)
    assert {field.name: field.type.value for field in entry.fields} == {
        "addr": "u64", "out_y": "u64", "value": "u64", "n": "u32", "n_2": "u32", "out_3": "u32", "value_2": "u32",
    }  # fmt: skip
    all_of_them = read_python_text("p.py", text.replace("cap=3", 'cap="dynamic"')).maps[0]
    assert (all_of_them.kind.name, all_of_them.cap) == ("log", 1)


def test_a_save_keeps_the_value_of_its_moment(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        'import neutrino.language as nl\n@nl.probe(pos="xor", level="thread", size=16)\ndef R():\n'
        "    a: nl.s32 = nl.in1\n    for i in range(2):\n        nl.save(a, dtype=nl.s32)\n        a += 1\n"
        "        nl.save((a, a - 1), dtype=nl.s32)\n        a = a * 2\n        nl.save(a, dtype=nl.s32)\n"
    )
    words = np.arange(BLOCK, dtype=np.uint32)
    view = run(load_probe_file(path), kernel(words, words))["R"]
    # With a cap of 1 the last record stays: that of the second turn.
    second = [(2 * (n + 1), 2 * (n + 1) + 1, 2 * (n + 1), 2 * (2 * (n + 1) + 1)) for n in range(BLOCK)]
    assert [tuple(record.item()) for record in view.records.reshape(-1)] == second


def test_constants_are_arguments() -> None:
    text = (
        "LIMIT = 2\nLATE = True\nimport neutrino.language as nl\n@nl.Map(level='thread', cap=LIMIT * 2)\nclass M:\n"
        "    a: nl.u32\n@nl.probe(pos='ld', level='thread', after=LATE)\ndef p():\n    M.save(1)\n"
    )
    for defines, cap in (({}, 4), ({"LIMIT": 5, "LATE": False}, 10)):
        draft = read_python_text("p.py", text, defines)
        assert draft.maps[0].cap == cap
        assert (draft.probes[0].before is None) == (not defines)


@pytest.mark.parametrize(
    ("written", "given", "words"),
    [("4", 2.5, "a whole number"), ("4", True, "a whole number"), ("True", 2, "true or false"),
     ("0.5", False, "a number")],
)  # fmt: skip
def test_a_define_of_another_type(written: str, given: float, words: str) -> None:
    with pytest.raises(ProbeError, match=f"but LIMIT is {words}"):
        read_python_text("p.py", f"LIMIT = {written}\n{at_load('shared = 1')}", {"LIMIT": given})


def test_a_define_that_fits() -> None:
    for written, given in (("4", 5), ("True", 0), ("0.5", 2), ("0.5", 0.25)):
        read_python_text("p.py", f"LIMIT = {written}\n{at_load('x: nl.f32 = nl.f32(LIMIT)')}", {"LIMIT": given})


def test_a_clock_waits_for_a_value(tmp_path: Path) -> None:
    text = at_load("x: nl.f32 = nl.out\nwhen = nl.clock(after=x)\nM.save(when)", "ld.global.f32")
    (probe,) = read_python_text("p.py", text).probes
    assert probe.after is not None
    (clock,) = [item for item in walk(probe.after.statements) if isinstance(item, ClockAfter)]
    assert clock.value.name == "%x$f32"
    path = tmp_path / "p.py"
    path.write_text(text)
    assert load_probe_file(path).probes


def test_calls_that_multiply_are_one_fault(tmp_path: Path) -> None:
    functions = "def f0(x):\n    return x ^ 1\n" + "".join(
        f"def f{index}(x):\n    y = f{index - 1}(x)\n    return f{index - 1}(y)\n" for index in range(1, 60)
    )
    (fault,) = _faults(tmp_path / "p.py", with_function(functions, "y = f59(shared)"))
    assert fault.message == "a probe of more than 1024 calls"


def test_a_probe_is_compiled_alike_each_time(tmp_path: Path) -> None:
    """Whatever the order in which Python has the names of a set."""
    function = "def f(aa, bb, cc, dd):\n    aa += 1\n    bb += 1\n    cc += 1\n    dd += aa + bb + cc\n    return dd\n"
    path = tmp_path / "p.py"
    path.write_text(with_function(function, "x = f(shared, shared, shared, shared)"))
    command = [sys.executable, "-m", "neutrino.cli.probe", "compile", str(path)]
    texts = {
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(texts) == 1
