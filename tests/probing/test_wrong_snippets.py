"""Snippets that the verifier refuses: each fault with its code, at its line and column, in words that help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neutrino.errors import ProbeError
from neutrino.ptx.isa.form_table import FAULTS
from neutrino.ptx.isa.forms import is_modifier, misplaced_modifier
from neutrino.ptx.isa.opcodes import FIRST_PARTS
from neutrino.verification import check_probes, load_probe_file
from tests.probing.wrong import at_load, check, named_fault

HALF = ".reg .f16x2 %hh;\n.reg .b32 %w;\n.reg .s32 %s;\n"
FIELDS = """[map.N]
level = "thread"
data = { f = "f32", w = "u32", h = "u16", d = "f64" }
"""
SIGNED = """[map.S]
level = "thread"
data = { v = "s8" }
"""


def saves(operands: str, **frame: str) -> str:
    """A probe that saves into fields of several types."""
    return at_load(f".reg .b32 %w;\nSAVE [ N ] {{ {operands} }};", **frame) + FIELDS


def at_level(level: str, after: str) -> str:
    return at_load(after).replace('"thread"', f'"{level}"')


def in_group(after: str) -> str:
    return at_level("group", after).replace('"array"', '"sum"')


def both_sides(before: str, after: str, position: str = "ld.global") -> str:
    return at_load(after, position=position).replace("after = ", f'before = "{before}"\nafter = ')


WRONG: dict[str, tuple[str, str, str, str]] = {
    # What a probe would do to the program
    "store": (at_load("¦st.global.u64 [%a], %b;"), "writes-memory", "'st.global.u64' is not allowed", "use SAVE"),
    "store of a vector": (at_load("¦st.v2.u32 [%a], {%n, %n};"), "writes-memory", "'st.v2.u32'", "use SAVE"),
    "store to a map's base": (at_load("¦st.global.u32 [neutrino], %n;"), "writes-memory", "'st.global.u32'", "SAVE"),
    "guarded store": (at_load("@%p ¦st.shared.u32 [%n], %n;"), "writes-memory", "'st.shared.u32'", "use SAVE"),
    "asynchronous store": (at_load("¦st.async.weak.u32 [%n], %n, [%n];"), "writes-memory", "'st.async.weak.u32'", ""),
    "reduction": (at_load("¦red.global.add.u32 [%a], 1;"), "writes-memory", "'red.global.add.u32'", "use SAVE"),
    "atomic": (at_load("¦atom.global.add.u64 %a, [%b], 1;"), "writes-memory", "is not allowed", "use SAVE"),
    "copy": (at_load("¦cp.async.ca.shared.global [%n], [%a], 4;"), "writes-memory", "is not allowed", "use SAVE"),
    "surface store": (at_load("¦sust.b.1d.b32 [%a, {%n}], {%n};"), "writes-memory", "is not allowed", "use SAVE"),
    "matrix store": (at_load("¦stmatrix.sync.aligned.m8n8.x1.b16 [%n], {%n};"), "writes-memory", "", "use SAVE"),
    "multimem": (at_load("¦multimem.red.add.u32 [%a], %n;"), "writes-memory", "is not allowed", "use SAVE"),
    "discard": (at_load("¦discard.global.L2 [%a], 128;"), "writes-memory", "is not allowed", "use SAVE"),
    "load": (at_load("¦ld.global.u64 %a, [%b];"), "reads-memory", "'ld.global.u64' is not allowed", "reads no memory"),
    "load of a parameter": (at_load("¦ld.param.u64 %a, [out];"), "reads-memory", "'ld.param.u64'", "reads no memory"),
    "volatile load": (at_load("¦ld.volatile.u32 %n, [%a];"), "reads-memory", "'ld.volatile.u32'", "OUT, IN1"),
    "texture": (at_load("¦tex.1d.v4.f32.s32 {%f}, [%a, {%n}];"), "reads-memory", "is not allowed", "reads no memory"),
    "prefetch": (at_load("¦prefetch.global.L2 [%a];"), "reads-memory", "is not allowed", "reads no memory"),
    "barrier": (at_load("¦bar.sync 0;"), "synchronises", "'bar.sync' is not allowed", "does not synchronise"),
    "named barrier": (at_load("¦barrier.sync 1, 32;"), "synchronises", "'barrier.sync'", "does not synchronise"),
    "warp barrier": (at_load("¦bar.warp.sync LANES;"), "synchronises", "'bar.warp.sync'", "does not synchronise"),
    "fence": (at_load("¦membar.gl;"), "synchronises", "'membar.gl'", "does not synchronise"),
    "fence of a proxy": (at_load("¦fence.proxy.async;"), "synchronises", "'fence.proxy.async'", ""),
    "sleep": (at_load("¦nanosleep.u32 100;"), "synchronises", "'nanosleep.u32'", ""),
    "wait": (at_load("¦mbarrier.try_wait.b64 %p, [%n], %a;"), "synchronises", "'mbarrier.try_wait.b64'", ""),
    "elect": (at_load("¦elect.sync %n|%p, LANES;"), "synchronises", "'elect.sync'", ""),
    "registers taken": (at_load("¦setmaxnreg.dec.sync.aligned.u32 24;"), "synchronises", "is not allowed", ""),
    "tensor instruction": (at_load("¦wgmma.fence.sync.aligned;"), "synchronises", "'wgmma.fence.sync.aligned'", ""),
    "branch": (at_load("@%p ¦bra L;"), "leaves-snippet", "'bra' is not allowed", "straight through"),
    "uniform branch": (at_load("¦bra.uni L;"), "leaves-snippet", "'bra.uni' is not allowed", "straight through"),
    "indirect branch": (at_load("¦brx.idx %n, T;"), "leaves-snippet", "'brx.idx' is not allowed", "straight through"),
    "call": (at_load("¦call.uni f, (%n);"), "leaves-snippet", "'call.uni' is not allowed", "straight through"),
    "return": (at_load("¦ret;"), "leaves-snippet", "'ret' is not allowed", "straight through"),
    "exit": (at_load("@!%p ¦exit;"), "leaves-snippet", "'exit' is not allowed", "straight through"),
    "trap": (at_load("¦trap;"), "leaves-snippet", "'trap' is not allowed", "straight through"),
    "breakpoint": (at_load("¦brkpt;"), "leaves-snippet", "'brkpt' is not allowed", "straight through"),
    "stack": (at_load("¦alloca.u64 %a, 16;"), "instruction-not-allowed", "'alloca' is not allowed", "made of"),
    "event": (at_load("¦pmevent 1;"), "instruction-not-allowed", "'pmevent' is not allowed", "made of"),
    "label": (at_load("¦L: add.u64 %a, %a, 1;"), "label", "a label in a snippet", "straight through"),
    "label like a register": (at_load("¦%n: add.u64 %a, %a, 1;"), "label", "a label in a snippet", ""),
    "carry out": (at_load("¦add.cc.u32 %n, %n, 1;"), "carry-flag", "'add.cc.u32' is not allowed", "carry flag"),
    "carry in": (at_load("¦addc.u32 %n, %n, 1;"), "carry-flag", "'addc.u32' is not allowed", "carry flag"),
    "carry of a product": (at_load("¦mad.lo.cc.u32 %n, %n, %n, 1;"), "carry-flag", "'mad.lo.cc.u32'", "carry flag"),
    "program's register": (at_load("mov.u64 ¦%rd1, 7;"), "undeclared-register", "register %rd1 is not declared", ""),
    "program's predicate": (
        at_load("setp.eq.u32 ¦%p1, %n, 1;"), "undeclared-register", "register %p1 is not declared", "",
    ),
    "program's register in a pair": (
        at_load("setp.eq.u32 ¦%p|%p1, %n, 1;"), "undeclared-register", "register %p1 is not declared", "",
    ),
    "private register": (
        at_load("add.u32 ¦%neutrino_k0, %n, 1;"), "undeclared-register", "%neutrino_k0 is not declared", "declare it",
    ),
    "program's register as a guard": (
        at_load("@¦%p9 add.u64 %a, %a, 1;"), "undeclared-register", "register %p9 is not declared", "did you mean %p?",
    ),
    "destination is a helper": (
        at_load("mov.u64 ¦OUT, %a;"), "write-refused", "OUT cannot be written", "only registers that it declares",
    ),
    "destination is an input": (at_load("add.u64 ¦IN1, %a, 1;"), "write-refused", "IN1 cannot be written", ""),
    "destination is an element": (at_load("add.u64 ¦OUT.3, %a, 1;"), "write-refused", "OUT.3 cannot be written", ""),
    "destination is the predicate": (
        at_load("setp.eq.u32 ¦PRED, %n, 1;"), "write-refused", "PRED cannot be written", "",
    ),
    "destination is a special register": (
        at_load("mov.u32 ¦%clock, %n;"), "write-refused", "%clock cannot be written", "that it declares",
    ),
    "destination is a special vector": (at_load("mov.u32 ¦%tid, %n;"), "write-refused", "%tid cannot be written", ""),
    "destination is an environment register": (at_load("mov.b32 ¦%envreg3, %n;"), "write-refused", "%envreg3", ""),
    # Games with punctuation
    "braces": (at_load("mov.b64 ¦{%n, %n}, %a;"), "brackets", "'{' in a snippet", "vectors are taken apart"),
    "a scope": (at_load("¦{ add.u64 %a, %a, 1;"), "brackets", "'{' in a snippet", "a snippet has no scopes"),
    "what is in a scope": (at_load("{ add.u64 %a, ¦%zebra, 1;"), "undeclared-register", "%zebra", ""),
    "a variable": (at_load("¦.shared .b32 x[4];"), "not-an-instruction", "'.shared' is no", "a map, with SAVE"),
    "a variable in a scope": (at_load("{ ¦.shared .b32 x[4]; };"), "not-an-instruction", "'.shared' is no", "SAVE"),
    "an index": (at_load("mov.b32 %n, x¦[4];"), "brackets", "'[' in a snippet", "reads no memory"),
    "a letter within a name": (at_load("mov.u64 %¦ä, 1;"), "not-ascii", "'ä' in an instruction", "ASCII"),
    "a scope's end": (at_load("add.u64 %a, %a, 1 ¦};"), "brackets", "'}' in a snippet", ""),
    "a register in a scope": (at_load("¦{.reg .u64 %rd1;"), "brackets", "'{' in a snippet", ""),
    "address": (at_load("mov.u64 %a, ¦[%b];"), "brackets", "'[' in a snippet", "reads no memory"),
    "not an instruction": (
        at_load("¦%a = %b + 1;"), "not-an-instruction", "is no instruction", "opcode.type destination",
    ),
    "directive": (at_load('¦.pragma \\"nounroll\\";'), "not-an-instruction", "is no instruction", ""),
    "location": (at_load("¦.loc 1 1 1;"), "not-an-instruction", "'.loc' is no instruction", ""),
    "shared memory": (at_load("¦.shared .b32 x;"), "not-an-instruction", "is no instruction", ""),
    "two guards": (at_load("¦@%p @%q add.u64 %a, %a, 1;"), "not-an-instruction", "is no instruction", ""),
    "guard without instruction": (at_load("¦@%p;"), "not-an-instruction", "'@%p' is no instruction", ""),
    "text": (at_load("mov.u64 %a, ¦'x';"), "not-an-operand", "is no operand", "registers begin with '%'"),
    "digits of another script": (at_load("add.u64 %a, %a, ¦١;"), "not-ascii", "in an instruction", "ASCII"),
    "letters of another script": (at_load("¦аdd.u64 %a, %a, 1;"), "not-ascii", "in an instruction", "ASCII"),
    "nul": (at_load("¦add.u64 %a, \\u0000%a, 1;"), "not-ascii", "'\\x00' in an instruction", "ASCII"),
    "symbol": (at_load("mov.u64 %a, ¦table;"), "not-an-operand", "'table' is no operand", "registers begin with '%'"),
    "arithmetic of operands": (at_load("mov.u64 %a, ¦%b+8;"), "undeclared-register", "%b+8 is not declared", ""),
    "sink": (at_load("add.u64 ¦_, %a, 1;"), "not-an-operand", "'_' is no operand", ""),
    "empty operand": (at_load("add.u64 %a¦, , 1;"), "not-an-operand", "'' is no operand", ""),
    # Instructions
    "unknown instruction": (
        at_load("¦ad.u64 %a, %a, 1;"), "unknown-instruction", "'ad' is no PTX instruction", "did you mean 'add'?",
    ),
    "instruction of another table": (
        at_load("¦vadd.u32.u32.u32 %n, %n, %n;"), "instruction-not-allowed", "'vadd' is not allowed", "add",
    ),
    "unknown form": (at_load("¦add.u46 %a, %a, 1;"), "unknown-form", "'add.u46' is not a form", "known: add."),
    "unrounded": (
        at_load("¦add.f32 %f, %f, %f;"), "unknown-form", "'add.f32' is not a form", "carry their rounding: add.rn.f32",
    ),
    "division": (at_load("¦div.rn.f32 %f, %f, %f;"), "unknown-form", "'div.rn.f32' is not a form", "multiply by rcp."),
    "unrounded division": (at_load("¦div.f32 %f, %f, %f;"), "unknown-form", "'div.f32' is not a form", "rcp.approx"),
    "division of another type": (at_load("¦div.u64 %a, %a, %a;"), "unknown-form", "'div.u64' is not", "becomes a call"),
    "empty modifier": (at_load("¦add..u64 %a, %a, 1;"), "unknown-form", "'add..u64' is not a form", ""),
    "wrong order": (at_load("¦cvt.u64.rn.f32 %a, %f;"), "unknown-form", "is not a form", "known: cvt"),
    "saturation that cannot be": (at_load("¦cvt.sat.u32.u32 %n, %n;"), "unknown-form", "is not a form", ""),
    "operands missing": (
        at_load("¦add.u64 %a, 1;"), "operand-count", "'add.u64' takes 3 operands, not 2", "add.u64 %u64, %u64, %u64;",
    ),
    "operands too many": (at_load("¦not.b64 %a, %a, %a;"), "operand-count", "takes 2 operands, not 3", "not.b64 %b64"),
    "no operands": (at_load("¦activemask.b32;"), "operand-count", "takes 1 operands, not 0", "activemask.b32 %b32;"),
    # Operands
    "undeclared": (
        at_load("add.u64 %a, ¦%aa, 1;"), "undeclared-register", "register %aa is not declared", "did you mean %a?",
    ),
    "undeclared, far": (
        at_load("add.u64 %a, ¦%zebra, 1;"), "undeclared-register", "%zebra is not declared",
        "declare it: .reg .u64 %zebra; the program's values are OUT, IN1",
    ),
    "undeclared guard": (
        at_load("@¦%guard add.u64 %a, %a, 1;"), "undeclared-register", "%guard is not declared", ".reg .pred %guard;",
    ),
    "undeclared narrow one": (at_load("cvt.u8.u32 ¦%tiny, %n;"), "undeclared-register", "%tiny", ".reg .u16 %tiny;"),
    "other case": (at_load("add.u64 %a, ¦%A, 1;"), "undeclared-register", "register %A is", "did you mean %a?"),
    "type of a source": (
        at_load("add.u64 %a, %a, ¦%n;"), "register-type", "%n is .u32, but 'add.u64' takes .u64", "use a .u64",
    ),
    "type of a destination": (at_load("mov.u32 ¦%a, 1;"), "register-type", "%a is .u64, but 'mov.u32'", "use a .u32"),
    "class of a source": (at_load("add.u32 %n, %n, ¦%f;"), "register-type", "%f is .f32, but 'add.u32'", ""),
    "product is wider": (at_load("mul.wide.u32 ¦%n, %n, %n;"), "register-type", "takes .u64 here", "use a .u64"),
    "conversion narrows": (at_load("cvt.u64.u32 ¦%n, %n;"), "register-type", "%n is .u32", ".u64 or wider"),
    "comparison into a number": (at_load("setp.eq.u32 ¦%n, %n, 1;"), "register-type", "takes .pred", ".pred register"),
    "comparison of pairs": (
        at_load(f"{HALF}setp.eq.f16x2 ¦%p, %hh, %hh;"), "not-a-destination", "'%p' is no destination", "%p|%q",
    ),
    "pair of one": (at_load("add.u32 ¦%n|%n, %n, 1;"), "not-a-destination", "no destination", "one register"),
    "three destinations": (at_load("setp.eq.u32 ¦%p|%q|%p, %n, 1;"), "not-a-destination", "", "%a or %a|%p"),
    "guard": (at_load("@¦%n add.u64 %a, %a, 1;"), "not-a-predicate", "%n is a .u32 register", "declare it .pred"),
    "guard is a helper": (at_load("@¦OUT add.u64 %a, %a, 1;"), "not-a-predicate", "OUT as a predicate", "mov.pred"),
    "selector": (at_load("selp.u64 %a, %a, 0, ¦%n;"), "not-a-predicate", "not a predicate", "declare it .pred"),
    "special register in arithmetic": (
        at_load("add.u32 %n, ¦%laneid, 1;"), "special-register", "'add.u32' cannot read the special register %laneid",
        "mov.u32 %r, %laneid;",
    ),
    "clock is wider": (at_load("mov.u32 %n, ¦%clock64;"), "register-type", "%clock64 is .u64, but 'mov.u32'", ""),
    "vector register": (at_load("mov.u32 %n, ¦%tid;"), "vector-register", "%tid is a vector", "write %tid.x"),
    "element of a vector": (at_load("mov.u32 %n, ¦%tid.w;"), "undeclared-register", "%tid.w", "did you mean %tid."),
    "integer for a float": (at_load("add.rn.f32 %f, %f, ¦1;"), "immediate-type", "'1' is an integer", "write 1.0"),
    "float for an integer": (at_load("add.u64 %a, %a, ¦1.5;"), "immediate-type", "'1.5' is not an", "takes .u64"),
    "bits of a float for an integer": (at_load("mov.b32 %n, ¦0f3F800000;"), "immediate-type", "is not an integer", ""),
    "decimal fraction to tf32": (
        at_load("cvt.rna.tf32.f32 %n, ¦1.5;"), "immediate-refused", "takes only the bits of a float", "0f3F800000",
    ),
    "immediate too large": (
        at_load("mov.u64 %a, ¦0x1ffffffffffffffff;"), "immediate-range", "does not fit in .u64", "truncate it",
    ),
    "immediate too large for 32 bits": (
        at_load("add.u32 %n, %n, ¦0x1FFFFFFFF;"), "immediate-range", "'0x1FFFFFFFF' does not fit in .u32", "",
    ),
    "immediate too small for 16 bits": (at_load("mov.b16 %h, ¦-32769;"), "immediate-range", "does not fit in .b16", ""),
    "field that no register has": (at_load("bfe.u64 %a, %a, ¦256, 1;"), "immediate-range", "from 0 to 255", "bfe.u64"),
    "lookup table of two bytes": (at_load("lop3.b32 %n, %n, %n, %n, ¦0x1E8;"), "immediate-range", "from 0 to 255", ""),
    "field by the site": (at_load("bfe.u64 %a, %a, 0, ¦SITE;"), "helper-type", "from 0 to 255 only", "mov.u32"),
    "immediate of a thousand digits": (at_load(f"mov.u64 %a, ¦{'9' * 9999};"), "immediate-range", "'9999", ""),
    "immediate of a half": (
        at_load("add.rn.f16 %h, %h, ¦1.0;"), "immediate-refused", "'add.rn.f16' takes no immediate", "mov.b16",
    ),
    "immediate of a pair": (
        at_load(f"{HALF}min.s16x2 %w, %w, ¦1;"), "immediate-refused", "takes no immediate", "mov.b32",
    ),
    "lookup table": (
        at_load("lop3.b32 %n, %n, %n, %n, ¦%n;"), "immediate-wanted", "'%n' is not an immediate", "needs a number",
    ),
    "lookup table of a helper": (at_load("lop3.b32 %n, %n, %n, %n, ¦OUT;"), "immediate-wanted", "OUT is not an", ""),
    # Helpers
    "misspelt helper": (at_load("mov.u64 %a, ¦ADR;"), "not-an-operand", "'ADR' is no operand", "did you mean ADDR?"),
    "input of no number": (at_load("mov.u64 %a, ¦IN0;"), "not-an-operand", "'IN0' is no operand", "IN1 to IN9"),
    "element of an address in brackets": (
        at_load("mov.b32 %n, ¦IN1.y;", position="st.global.v4"), "operand-absent", "st has no IN1.y", "is its address",
    ),
    "other comment": (
        at_load("mov.u32 %n, 1; ¦# one"), "not-an-instruction", "'# one' is no instruction", "begin with //",
    ),
    "save in small letters": (at_load("¦save [ M ] { %a };"), "not-an-instruction", "no instruction", "SAVE [ MAP ]"),
    "save as a method": (at_load("¦M.save(%a);"), "not-an-instruction", "is no instruction", "SAVE [ MAP ]"),
    "modifiers of a class": (
        at_load("", position="¦store.global"), "unknown-opcode", "no instruction 'store'", '"st.global"',
    ),
    "machine code": (at_load("", position="¦ldg"), "unknown-opcode", "no instruction 'ldg'", '"ld.global"'),
    "tenth input": (at_load("mov.u64 %a, ¦IN10;"), "not-an-operand", "'IN10' is no operand", "inputs are IN1 to IN9"),
    "fifth letter": (at_load("mov.u64 %a, ¦OUT.v;"), "not-an-operand", "'OUT.v' is no operand", ""),
    "element of an address": (at_load("mov.u64 %a, ¦ADDR.x;"), "not-an-operand", "'ADDR.x' is no operand", ""),
    "element out of range": (at_load("mov.u64 %a, ¦OUT.128;"), "operand-absent", "no operand has an element 128", ""),
    "out before": (
        at_load("mov.u64 %a, ¦OUT;", side="before"), "out-in-before", "OUT in 'before'", "in 'after' only",
    ),
    "element of out before": (at_load("mov.u64 %a, ¦OUT.y;", side="before"), "out-in-before", "OUT.y in 'before'", ""),
    "helper at kernel": (
        at_load("mov.u64 %a, ¦IN1;", position="kernel"), "operand-without-instruction", "IN1 at 'kernel'",
        "a kernel has no operands",
    ),
    "line at kernel": (
        at_load("mov.u32 %n, ¦LINE;", position="kernel"), "operand-without-instruction", "LINE at 'kernel'", "",
    ),
    "predicate at kernel": (
        at_load("mov.pred %p, ¦PRED;", position="kernel"), "operand-without-instruction", "PRED at 'kernel'", "",
    ),
    "helper at a function": (
        at_load("mov.u64 %a, ¦IN1;", position="func:f"), "operand-without-instruction", "IN1 at a function",
        "ld.global func:NAME",
    ),
    "helper at a line": (
        at_load("mov.u64 %a, ¦ADDR;", position="k.cu:7"), "operand-without-instruction", "ADDR at a source line",
        "ld.global file.cu:42",
    ),
    "helper where one pattern is the kernel": (
        at_load("mov.u64 %a, ¦ADDR;", position="ld.global | kernel"), "operand-without-instruction", "at 'kernel'", "",
    ),
    "out of a copy": (
        at_load("mov.u64 %a, ¦OUT;", position="cp.async.ca"), "out-asynchronous", "OUT of an asynchronous instruction",
        "not there yet",
    ),
    "out of wgmma": (
        at_load("mov.b32 %n, ¦OUT.5;", position="wgmma.mma_async"), "out-asynchronous", "OUT.5 of an asynchronous", "",
    ),
    "out of a load of tensor memory": (
        at_load("mov.b32 %n, ¦OUT;", position="tcgen05.ld"), "out-asynchronous", "OUT of an asynchronous", "not there",
    ),
    "out of a store": (
        at_load("mov.u64 %a, ¦OUT;", position="st.global"), "operand-absent", "st has no OUT", "writes no register",
    ),
    "out of a class": (at_load("mov.u64 %a, ¦OUT;", position="store"), "operand-absent", "has no OUT", ""),
    "out of one alternative": (
        at_load("mov.u64 %a, ¦OUT;", position="ld.global | red.global"), "operand-absent", "red has no OUT", "",
    ),
    "input that is not there": (
        at_load("mov.u32 %n, ¦IN3;", position="add.u32"), "operand-absent", "add has no IN3", "it has 2 inputs",
    ),
    "input of what has none": (
        at_load("mov.u32 %n, ¦IN1;", position="activemask"), "operand-absent", "has no IN1", "it has no inputs",
    ),
    "address of arithmetic": (
        at_load("mov.u64 %a, ¦ADDR;", position="fma.rn"), "operand-absent", "has no ADDR", "accesses no memory",
    ),
    "bytes of arithmetic": (at_load("mov.u64 %a, ¦BYTES;", position="add"), "operand-absent", "has no BYTES", ""),
    "operations of a load": (
        at_load("add.u64 %a, %a, ¦OPS;"), "operand-absent", "ld has no OPS", "class tensor",
    ),
    "address is wide": (
        at_load("mov.u32 %n, ¦ADDR;"), "helper-type", "ADDR has 64 bits, but 'mov.u32'", "cvt.u32.u64 %r, ADDR;",
    ),
    "lanes are narrow": (
        at_load("mov.u64 %a, ¦LANES;"), "helper-type", "LANES has 32 bits, but 'mov.u64'", "cvt.u64.u32 %r, LANES;",
    ),
    "predicate in arithmetic": (
        at_load("add.u32 %n, %n, ¦PRED;"), "helper-type", "PRED is a predicate", "selp.u32 %r, 1, 0, PRED;",
    ),
    "site as a float": (at_load("mov.f32 %f, ¦SITE;"), "helper-type", "SITE has 32 bits", "it is an integer"),
    # Between lanes
    "shuffle of all lanes": (
        at_load("shfl.sync.bfly.b32 %n, %n, 1, 31, ¦-1;"), "collective-mask", "is -1, not LANES", "LANES are here",
    ),
    "vote of a register's lanes": (
        at_load("activemask.b32 %n;\nvote.sync.any.pred %p, %p, ¦%n;"), "collective-mask", "is %n, not LANES", "",
    ),
    "match of one lane": (at_load("match.any.sync.b32 %n, %n, ¦1;"), "collective-mask", "is 1, not LANES", ""),
    "guarded vote": (
        at_load("¦@%p vote.sync.ballot.b32 %n, %q, LANES;"), "collective-guard", "under a predicate", "selp",
    ),
    "scratch that nothing has set": (
        at_load(".reg .u32 %s$;\nadd.u32 %n, %n, ¦%s$;"), "scratch-unset", "%s$ is scratch, and nothing has set it",
        "a register without '$'",
    ),
    "scratch that is set from itself": (
        at_load(".reg .u32 %s$;\nadd.u32 ¦%s$, %s$, 1;"), "scratch-unset", "%s$ is scratch", "lost after each snippet",
    ),
    "scratch as a predicate": (
        at_load(".reg .pred %s$;\n@¦%s$ mov.u32 %n, 1;"), "scratch-unset", "%s$ is scratch", "",
    ),
    "guarded reduction": (at_load("¦@!%p redux.sync.add.u32 %n, %n, LANES;"), "collective-guard", "redux.sync", ""),
    "vote of a warp's first lane": (
        at_level("warp", "¦vote.sync.ballot.b32 %n, %p, LANES;"), "collective-level", "at level warp", "thread",
    ),
    "shuffle of a block's first thread": (
        at_level("block", "¦shfl.sync.idx.b32 %n, %n, 0, 31, LANES;"), "collective-level", "at level block", "",
    ),
    "a kept register of a group": (
        in_group("¦add.u32 %n, %n, 1;"), "group-register", "a group probe writes %n", "put a '$' in its name",
    ),
    "a vote of a group into a kept register": (
        in_group("¦vote.sync.ballot.b32 %n, %p, LANES;"), "group-register", "a group probe writes %n", "as a sum",
    ),
    "vote without its mask": (at_load("¦vote.any.pred %p, %q;"), "unknown-form", "is not a form", "known: vote.sync"),
    "shuffle without sync": (at_load("¦shfl.idx.b32 %n, %n, 0, 31;"), "unknown-form", "is not a form", "shfl.sync"),
    # SAVE
    "predicated save": (at_load("@PRED ¦SAVE [ M ] { %a };"), "predicated-save", "SAVE under a predicate", "@%p SAVE"),
    "save under a number": (at_load("@¦%n SAVE [ M ] { %a };"), "not-a-predicate", "%n is a .u32", "declare it .pred"),
    "save under nothing": (at_load("@!¦%none SAVE [ M ] { %a };"), "undeclared-register", "%none", "declare it"),
    "saved type": (
        at_load("SAVE [ M ] { ¦%n };"), "save-type", "%n is .u32, but field 'value' is u64", "convert with cvt first",
    ),
    "saved predicate": (at_load("SAVE [ M ] { ¦%p };"), "save-type", "%p is .pred, but field 'value' is u64", ""),
    "saved and undeclared": (at_load("SAVE [ M ] { ¦%c };"), "undeclared-register", "register %c is not declared", ""),
    "saved number is too large": (
        at_load("SAVE [ M ] { ¦0x1ffffffffffffffff };"), "save-range", "not fit in field 'value', which is u64", "",
    ),
    "saved number is too large for 32 bits": (
        saves("%f, ¦0x1FFFFFFFF, %h, %d"), "save-range", "does not fit in field 'w', which is u32", "",
    ),
    "saved number is too small for 16 bits": (saves("%f, %w, ¦-32769, %d"), "save-range", "which is u16", ""),
    "saved number is too large for a sign": (
        at_load("SAVE [ S ] { ¦200 };") + SIGNED, "save-range", "'200' does not fit in field 'v', which is s8",
        "from -128 to 127; the bits of others in hexadecimal, such as 0xff",
    ),
    "saved number is too low without a sign": (
        at_load("SAVE [ M ] { ¦-9223372036854775809 };"), "save-range", "which is u64",
        "from 0 to 18446744073709551615; -1 is all ones",
    ),
    "saved integer for a float": (saves("¦1, %w, %h, %d"), "save-type", "'1' is an integer", "field 'f' is f32"),
    "saved fraction": (saves("¦1.5, %w, %h, %d"), "save-type", "'1.5' in SAVE", "mov it into a register"),
    "saved address is cut": (saves("%f, ¦ADDR, %h, %d"), "save-type", "ADDR has 64 bits, but field 'w'", "u64"),
    "saved lanes are cut": (saves("%f, %w, ¦LANES, %d"), "save-type", "LANES has 32 bits, but field 'h'", "u32"),
    "saved bytes as a float": (saves("%f, %w, %h, ¦BYTES"), "save-type", "BYTES has 64 bits, but field 'd'", "u64"),
    "saved predicate as a float": (saves("¦PRED, %w, %h, %d"), "save-type", "PRED is a predicate", "u32"),
    "saved out before": (at_load("SAVE [ M ] { ¦OUT };", side="before"), "out-in-before", "OUT in 'before'", ""),
    "saved symbol": (at_load("SAVE [ M ] { ¦table };"), "not-an-operand", "'table' is no operand", ""),
    "saved register of the program": (at_load("SAVE [ M ] { ¦%rd4 };"), "undeclared-register", "%rd4 is not", ""),
    # Positions
    "unknown opcode": (
        at_load("", position="¦ldd.global"), "unknown-opcode", "PTX has no instruction 'ldd'", "did you mean 'ld'?",
    ),
    "a kernel's name": (at_load("", position="¦saxpy_kernel"), "unknown-opcode", "no instruction 'saxpy_kernel'", "-k"),
    "misspelt class": (
        at_load("", position="¦memry"), "unknown-opcode", "PTX has no instruction 'memry'", "did you mean 'memory'?",
    ),
    "unknown opcode among others": (
        at_load("", position="ld.global | ¦sst.global"), "unknown-opcode", "no instruction 'sst'", "did you mean",
    ),
    "after a branch": (
        at_load("", position="¦bra"), "nothing-after", "nothing can run after 'bra'", 'position = "kernel"',
    ),
    "after an end": (at_load("", position="add | ¦ret"), "nothing-after", "nothing can run after 'ret'", ""),
    "out of the second side": (
        both_sides("mov.u64 %b, ¦OUT;", "mov.u64 %b, OUT;"), "out-in-before", "OUT in 'before'", "",
    ),
    # The third input of a store or load would be its cache policy.
    "a third input of a store": (at_load("mov.b32 %n, ¦IN3;", position="st.global"), "operand-absent", "st has no IN3",
                                 "it has 2 inputs; with .L2::cache_hint the last one is its cache policy"),
    "a third input of an atomic": (at_load("mov.b32 %n, ¦IN3;", position="atom.global.add"), "operand-absent",
                                   "atom has no IN3", "it has 2 inputs"),
    "a second input of a load": (at_load("mov.b32 %n, ¦IN2;", position="ld.global.nc"), "operand-absent",
                                 "ld.global.nc has no IN2", "it has 1 input; with .L2::cache_hint"),
    "a condition's opcode": (at_load("", position="load & (¦ldd.global | ld.shared)"), "unknown-opcode",
                             "PTX has no instruction 'ldd'", "did you mean 'ld'?"),
    "a wildcard of no opcode": (at_load("", position="¦zz*.global"), "unknown-opcode", "no instruction 'zz*'", ""),
    "an operand that a class's rest lacks": (at_load("mov.b32 %n, ¦OUT;", position="memory & !(load | atomic)"),
                                             "operand-absent", "has no OUT", ""),
    # Floats and integers: by the type in the tracepoint
    "a float in an integer field": (saves("1", position="ld").replace("{ 1 }", "{ %f, ¦OUT, 1, %d }")
                                    .replace('"ld"', '"ld.global.f32"'),
                                    "save-type", "OUT of ld.global.f32 is f32, but field 'w' is u32",
                                    "make the field f32, or save OUT.bits"),
    "a half in an integer field": (saves("%f, 1, ¦OUT, %d", position="mul.f16"), "save-type",
                                   "OUT of mul.f16 is f16, but field 'h' is u16", "make the field f32"),
    "an input that is a double": (saves("%f, ¦IN2, 1, %d", position="st.f64"), "save-type",
                                  "IN2 of st.f64 is f64, but field 'w' is u32", "make the field f64"),
    "an integer in a float field": (saves("¦OUT, 1, 2, %d", position="atom.add.u32"), "save-type",
                                    "OUT of atom.add.u32 is u32, but field 'f' is f32", "make the field u32"),
    "the second of two patterns": (saves("%f, ¦OUT, 1, %d", position="ld.b32 | add.f32"), "save-type",
                                   "OUT of add.f32 is f32, but field 'w' is u32", "make the field f32"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_named_at_its_place(tmp_path: Path, name: str) -> None:
    marked, code, message, hint = WRONG[name]
    assert named_fault(tmp_path / "probe.toml", marked, message, hint).code == code


WAITS = "setp.ne.b32 %p, OUT, 0;\n@%p mov.u64 %b, %clock64;\n@!%p mov.u64 %b, %clock64;\nsub.u64 %a, %b, %a;"

DOUBTFUL = {
    "a clock on both sides of a load": (both_sides("mov.u64 %a, %clock64;", "mov.u64 %b, ¦%clock64;"),
                                        "%clock64 after a load does not wait", "under a predicate made from OUT"),
    "a difference to an earlier time": (at_load("mov.u32 %n, ¦%clock;\nsub.u32 %n, %n, 1;", position="load !param"),
                                        "%clock after a load does not wait", "setp.ne.b32 %p, OUT, 0"),
    "a value of OUT in the difference alone": (
        at_load("mov.u64 %b, ¦%globaltimer;\nmov.b64 %a, OUT;\nand.b64 %a, %a, 0;\nadd.u64 %b, %b, %a;"
                "\nsub.u64 %a, %b, 1;"),
        "%globaltimer after a load does not wait", ""),
    "one of two clocks waits": (
        at_load("setp.ne.b32 %p, OUT, 0;\n@%p mov.u64 %b, %clock64;\nmov.u64 %a, ¦%clock;\nsub.u64 %a, %a, %b;"
                .replace("%clock;", "%clock64;"), position="atom"), "after a load does not wait", ""),
    "misspelt modifier": (at_load("", position="ld.¦globl.u32"), "has the modifier 'globl'", "did you mean 'global'?"),
    "excluded": (at_load("", position="store !¦sharde"), "has the modifier 'sharde'", "did you mean 'shared'?"),
    "second pattern": (at_load("", position="ld.global | st.¦zzzzzzz"), "has the modifier 'zzzzzzz'", "finds nothing"),
    "misspelt in a condition": (at_load("", position="load & (global | ¦volatil)"), "has the modifier 'volatil'",
                                "did you mean 'volatile'?"),
    "misspelt in an opcode of a condition": (at_load("", position="load & !ld.¦volatil"), "has the modifier 'volatil'",
                                             "did you mean 'volatile'?"),
    "a wildcard of no modifier": (at_load("", position="ld.¦zz*"), "has the modifier 'zz*'", "finds nothing"),
    "excluded by no word": (at_load("", position="* !¦zzzzzzz"), "has the modifier 'zzzzzzz'", "excludes nothing"),
    "other order": (at_load("", position="ld.f32.¦global"), "'global' after its type", 'mean "ld.global.f32"?'),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_modifiers_that_ptx_does_not_have_are_warned_about(tmp_path: Path, name: str) -> None:
    marked, message, hint = DOUBTFUL[name]
    before, after = marked.split("¦")
    path = tmp_path / "probe.toml"
    path.write_text(before + after)
    (warning,) = check_probes([str(path)]).diagnostics
    assert (warning.severity, warning.code) == (
        "warning",
        "modifier-order" if "after its type" in message else "early-clock" if "wait" in message else "unknown-modifier",
    )  # fmt: skip
    assert (warning.line, warning.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
    assert message in warning.message
    assert hint in warning.hint


def test_every_modifier_of_the_tests_kernels_is_known() -> None:
    word = re.compile(r"(?:^|[;{}:\s])([a-z]\w*(?:\.[\w:]+)+)", re.ASCII | re.MULTILINE)
    texts = [path.read_text(errors="ignore") for path in Path(__file__).parents[1].rglob("*.ptx")]
    texts.append((Path(__file__).parents[1] / "ptx" / "isa_examples.txt").read_text())
    opcodes = {match[1] for text in texts for match in word.finditer(re.sub(r"//.*", "", text))}
    used = [parts for parts in (opcode.split(".") for opcode in opcodes) if parts[0] in FIRST_PARTS]
    assert len(used) > 500
    assert [parts for parts in used if not all(map(is_modifier, parts[1:]))] == []
    assert [parts for parts in used if misplaced_modifier(parts) is not None] == []


def test_every_code_is_provoked() -> None:
    warnings = {"unknown-modifier", "modifier-order", "early-clock"}
    assert {code for _, code, _, _ in WRONG.values()} | warnings == set(FAULTS)


RIGHT = {
    "the frame": at_load(""),
    "the policy of a store": at_load("mov.b64 %a, IN3;", position="st.global.L2::cache_hint"),
    "a third input of an atomic": at_load("mov.b32 %n, IN3;", position="atom.cas | atom.global.cas.b32"),
    "an asynchronous store's barrier": at_load("mov.b32 %n, IN3;", position="st.async", side="before"),
    "bits of a float": saves("OUT, OUT.bits, IN1.bits, %d", position="ld.global.f32").replace('h = "u16"', 'h = "u64"'),
    "an integer as an integer": saves("%f, OUT, 1, %d", position="ld.global.u8 | popc"),
    "the frame of fields": saves("%f, %w, %h, %d"),
    "lanes in fields": saves("%f, LANES, SITE, %d").replace('h = "u16"', 'h = "s64"'),
    "a sentinel of all ones": saves("%f, -1, -1, %d").replace("{ %a }", "{ -1 }"),
    "bits of a number with a sign": at_load("SAVE [ S ] { 0xff };\nSAVE [ S ] { -128 };") + SIGNED,
    "guards": at_load("@%p add.u64 %a, %a, 1;\n@!%q add.u64 %a, %a, 1;\n@ ! %p mov.u32 %n, 1;\n@PRED mov.u32 %n, 1;"),
    "selectors": at_load("selp.u64 %a, 1, 0, PRED;\nselp.u64 %a, 1, 0, !PRED;\nmov.pred %p, PRED;"),
    "elements": at_load("mov.b32 %n, OUT.x;\nmov.b32 %n, OUT.127;\nmov.b32 %n, IN2.w;", position="mma"),
    "collectives": at_load(
        "match.any.sync.b32 %n, OUT, LANES;\nmatch.all.sync.b64 %n|%p, ADDR, LANES;\nvote.sync.any.pred %p, !%p, LANES;"
        "\nredux.sync.max.u32 %n, %n, LANES;\nshfl.sync.idx.b32 %n|%p, %n, 0, 31, LANES;\npopc.b32 %n, LANES;"
    ),
    "collectives of reaching lanes": at_load("vote.sync.ballot.b32 %n, PRED, LANES;").replace(
        "after =", 'lanes = "reaching"\nafter ='
    ),
    "lanes at kernel": at_load("mov.b32 %n, LANES;", position="kernel"),
    "collectives at kernel": at_load("redux.sync.add.u32 %n, %n, LANES;", position="kernel"),
    "collectives at functions": at_load("vote.sync.ballot.b32 %n, %p, LANES;", position="ld.global | func:f"),
    "scratch": at_load(".reg .u32 %s$;\n@%p mov.u32 %s$, 1;\nadd.u32 %s$, %s$, 1;\nadd.u32 %n, %n, %s$;"),
    "collectives at a line": at_load("vote.sync.ballot.b32 %n, %p, LANES;", position="k.cu:1"),
    "alternatives": at_load("mov.u64 %a, ADDR;", position="ld.global | st.global | atom"),
    "a class": at_load("mov.u64 %a, ADDR;\nadd.u64 %a, %a, BYTES;", position="memory"),
    "operations": at_load("add.u64 %a, %a, OPS;", position="tensor"),
    "an input of what has many": at_load("mov.b32 %n, IN9.3;", position="mma"),
    "a narrower pattern has it": at_load("mov.u64 %a, BYTES;", position="cp.async.bulk !tensor"),
    "a site's number at a line": at_load("mov.u32 %n, SITE;", position="k.cu:1"),
}


@pytest.mark.parametrize("text", [
    # It waits, or what is measured is no load; or the time is a point in time.
    both_sides("mov.u64 %a, %clock64;", WAITS),
    both_sides("mov.u64 %a, %clock64;", "mov.u64 %b, %clock64;", "st.global"),
    both_sides("mov.u64 %a, %clock64;", "mov.u64 %b, %clock64;", "bar"), at_load("mov.u64 %a, %clock64;"),
    at_load(WAITS, position="load"),
])  # fmt: skip
def test_clocks_that_are_not_warned_about(tmp_path: Path, text: str) -> None:
    (tmp_path / "probe.toml").write_text(text)
    assert check_probes([str(tmp_path / "probe.toml")]).diagnostics == ()


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_have_no_fault(tmp_path: Path, name: str) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(RIGHT[name])
    check(path)


def test_two_faults_of_one_snippet_and_of_two_operands(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(at_load("add.u64 %n, %x, %f;\nbar.sync 0;"))
    with pytest.raises(ProbeError) as caught:
        check(path)
    assert [fault.code for fault in caught.value.diagnostics] == [
        "register-type", "undeclared-register", "register-type", "synchronises",
    ]  # fmt: skip


def test_files_of_another_platform_are_verified_by_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(at_load("s_nop 0;"))
    with pytest.raises(ProbeError, match="'s_nop'"):
        load_probe_file(path)
    path.write_text('platform = "hip"\n' + path.read_text().replace('platform = "cuda"\n', ""))
    with pytest.raises(ProbeError, match="'s_nop' is not allowed in a snippet"):
        load_probe_file(path)
