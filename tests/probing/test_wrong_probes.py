"""Wrong probe files: each fault at its line and column, with a message and a hint that help.

``¦`` marks the place at which the fault must be reported; it is taken out before the file is read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.probing.faults import FAULTS, WARNINGS
from neutrino.ptx.isa.form_table import FAULTS as SNIPPET_FAULTS
from neutrino.verification import load_probe_file, load_probes
from tests.probing.wrong import MAP, at_load, fault_at_mark, named_fault


def older(datamodel: str = '"warp:8"', *, save: str = "SAVE.u64 {1};", more: str = "") -> str:
    """A file with one probe in the older dialect."""
    return f'''[old]
position = "kernel"
datamodel = {datamodel}
{more}
after = """
{save}
"""
'''


WRONG = {
    # The document
    "not toml": ("platform = ¦cuda\n", "not TOML: invalid value", "texts stand in quotes"),
    "key twice": ('platform = "cuda"\nplatform = "cuda"¦\n', "cannot overwrite a value", "it stands twice"),
    "table twice": (
        f"{at_load('')}\n[probe.p¦]\nposition = 1\n", "cannot declare [probe.p] twice", "it stands twice",
    ),
    "text without end": ('platform = "cuda¦', "not TOML: ", ""),
    "platform": (f'platform = ¦"hpi"\n{at_load("")}', 'platform "hpi" is not known', 'platform = "cuda"'),
    "platform by another name": (f'platform = ¦"rocm"\n{at_load("")}', 'platform "rocm" is not known', '"hip"'),
    "unknown top key": (f'¦plattform = "cuda"\n{at_load("")}', "unknown key 'plattform'", "did you mean 'platform'?"),
    "unknown top table": (f"{at_load('')}[¦probes.q]\nposition = 1\n", "unknown key 'probes'", "did you mean 'probe'?"),
    "a one-liner in a file": ("ld.global ¦{ @ = count() }", "not TOML", "that is a one-liner, which has no file form"),
    "arrays in arrays": (f"¦a = {'[' * 50000}", "nested too deeply", "is it a probe file?"),
    "an array that does not end": ('callback = ["a.py"\n¦[map.M]\n', "unclosed array", "an array ends with ]"),
    "a number of many digits": (f"¦a = {'9' * 5000}", "not TOML: ", ""),
    "map is no table": (f"¦map.X = 3\n{at_load('')}", "'map.X' is not a table", "write [map.X]"),
    "map is a number": (f"¦map = 3\n{at_load('').replace('[map.M]', '[[mapp]]')}", "'map' is no table", "[map.NAME]"),
    "map without a name": (
        at_load("").replace("[map.M]\ntype", "[map]\n¦before = 1\ntype"), "[map] has no name", "write [map.NAME]",
    ),
    "dotted key without end": (f"¦{'a.' * 70}b = 1\n", "a key has more than 32 parts", ""),
    "hook is a number": (f"analyze_hook = ¦3\n{at_load('')}", "analyze_hook is 3", 'analyze_hook = "script.py"'),
    "callback in a list": (f'callback = ["", ¦7]\n{at_load("")}', "callback is 7", 'callback = "script.py"'),
    "nothing at all": ("¦", "no [map.NAME] in the file", "declare [map.NAME]"),
    "no probe at all": (f"¦{MAP}", "no [probe.NAME] in the file", "write [probe.NAME]"),
    # Maps
    "size": (at_load("").replace("size = 8", "size = ¦16"), "size is 16, but the fields take 8 bytes", "size = 8"),
    "size is a word": (at_load("").replace("size = 8", 'size = ¦"big"'), 'size is "big"', "write size = 8"),
    "size is true": (at_load("").replace("size = 8", "size = ¦true"), "size is true", "write size = 8"),
    "map type": (at_load("").replace('"array"', '¦"arary"'), 'type of a map is "arary"', 'did you mean "array"?'),
    "map level": (
        at_load("").replace('level = "thread"\nsize', 'level = ¦"grid"\nsize'),
        'level is "grid"',
        'use "thread", "warp", "block" or "group"',
    ),
    "an array of groups": (
        at_load("").replace('"thread"', '"group"').replace('level = "group"\nsize', 'level = ¦"group"\nsize'),
        "an array keeps records of each thread, warp or block, and a group has no place of its own",
        'cap = "dynamic"',
    ),
    "a result for each thread of a group": (
        at_load("").replace('"thread"', '"group"').replace('"array"', '"sum"').replace("size = 8", 'per = ¦"thread"'),
        'per is "thread", but at level group one thread saves for its group',
        'per = "warp"',
    ),
    "a group that saves to slots": (
        at_load("", level="group").replace("SAVE [ M ]", "¦SAVE [ M ]"),
        "a group probe saves to 'M', which keeps records of each thread",
        'cap = "dynamic"',
    ),
    "a group that saves for its warp": (
        at_load("", level="group").replace('"thread"', '"warp"').replace("size = 8", "cap = 2")
        .replace("SAVE [ M ]", "¦SAVE [ M ]"),
        "a group probe saves to 'M', a warp map",
        'level = "warp"',
    ),
    "no map level": (
        at_load("").replace('[map.M]', "[¦map.M]").replace('level = "thread"\nsize', "size"),
        "[map.M] has no level",
        'level = "thread"',
    ),
    "map key": (at_load("").replace("size = 8", "¦sise = 8"), "unknown key 'sise'", "did you mean 'size'?"),
    "cap dynamic of a sum": (
        at_load("").replace('"array"', '"sum"').replace("size = 8", 'cap = ¦"dynamic"'),
        'cap is "dynamic", but a sum has one record',
        "leave cap out",
    ),
    "cap zero": (at_load("").replace("size = 8", "cap = ¦0"), "cap is 0", "an integer from 1 to"),
    "cap of a sum": (
        at_load("").replace('"array"', '"sum"').replace("size = 8", "cap = ¦2"),
        "cap is 2, but a sum has one record",
        "leave cap out",
    ),
    **{
        f"cap {cap} of a ring": (
            at_load("").replace('"array"', '"ring"').replace("size = 8", f"cap = ¦{cap}"),
            f"cap is {cap}, but a ring has room for some records",
            "write cap = 16",
        )
        for cap in ('"dynamic"',)
    },
    "sum of few bits": (
        at_load("").replace('"array"', '"sum"').replace('"u64"', '¦"u16"'),
        "field 'value' of a sum is u16",
        "a sum adds u32, s32, u64, s64, f32 or f64",
    ),
    "field type": (
        at_load("").replace('"u64"', '¦"text"'), "type of field 'value' is \"text\"", 'use "u8", "s8"',
    ),
    "field type of another width": (
        at_load("").replace('"u64"', '¦"u128"'), "type of field 'value' is \"u128\"", 'use "u8", "s8"',
    ),
    "field type of another language": (
        at_load("").replace('"u64"', '¦"int64_t"'), "type of field 'value' is \"int64_t\"", 'did you mean "s64"?',
    ),
    "positions in a list": (
        at_load("").replace('"ld.global"', '¦["ld.global", "st"]'), "position is an array", 'write "ld.global | st"',
    ),
    "quotes of a word processor": (
        at_load("").replace('"array"', "¦“array”"), "not TOML: invalid value", "quotes are written",
    ),
    "inline table of two lines": (
        at_load("").replace('"u64" }', '"u64",¦\n b = "u32" }'), "not TOML", "stands in one line",
    ),
    "pattern with a semicolon": (at_load("").replace('"ld.global"', '"¦ld.global;"'), "no pattern", "no ';'"),
    "pattern with operands": (
        at_load("").replace('"ld.global"', '"ld.global ¦[%rd1]"'), "does not narrow", "the opcode alone",
    ),
    "name of CUDA": (at_load("").replace('"ld.global"', '"¦__syncthreads"'), "is no pattern", "bar.sync"),
    "map without a name, with its keys": (
        at_load("").replace("[map.M]\ntype", "[map]\n¦type"), "[map] has no name", "write [map.NAME]",
    ),
    "no data": (
        at_load("").replace("[map.M]", "[¦map.M]").replace('data = { value = "u64" }', ""),
        "[map.M] has no data",
        'data = { start = "u64" }',
    ),
    "data is no table": (
        at_load("").replace('{ value = "u64" }', "¦3"), "data names no field", '{ start = "u64" }',
    ),
    "map name": (at_load("").replace("[map.M]", '[¦map."a b"]'), "map name 'a b'", "letters, digits"),
    "field name": (at_load("").replace("{ value", '{ ¦"a b"'), "field name 'a b'", "letters, digits"),
    "name with an escape sequence": (
        at_load("").replace("[probe.p]", '[¦probe."a\\u001b[2J"]'), "probe name 'a\ufffd[2J'", "letters, digits",
    ),
    # Probes
    "no position": (
        at_load("").replace("[probe.p]", "[¦probe.p]").replace('position = "ld.global"', ""),
        "[probe.p] has no position",
        'position = "kernel"',
    ),
    "position is a number": (
        at_load("").replace('"ld.global"', "¦3"), "position is 3", "write a text",
    ),
    "position is upper case": (at_load("", position="¦LD.GLOBAL"), "'LD.GLOBAL' is no pattern", '"ld.global"'),
    "position is empty": (at_load("", position="¦"), "position is empty", 'write "kernel"'),
    "alternative is empty": (
        at_load("", position="ld||st").replace("||", "|¦|"), "names nothing here", 'one "|" joins patterns',
    ),
    "pattern with a side": (at_load("", position="¦ld:end"), "'ld:end' is no pattern", "after=True"),
    "line of no file": (at_load("", position="¦line:35"), "does not say of which file", 'write "FILE:35"'),
    "alternative twice": (at_load("", position="ld | ¦ld"), "'ld' stands there twice", "once"),
    "patterns by commas": (at_load("", position="¦ld,st"), "'ld,st' is no pattern", 'join patterns by "|"'),
    "patterns by spaces": (at_load("", position="ld ¦st"), "'st' does not narrow", 'join patterns by "|"'),
    "exclusion alone": (at_load("", position="¦!tensor"), "'!tensor' is no pattern", "what to match first"),
    "exclusion of none": (at_load("", position="ld ¦!"), "'!' excludes no single modifier", "!prefetch"),
    "exclusion of two": (at_load("", position="ld ¦!a+b"), "'!a+b' excludes no single modifier", "!prefetch"),
    # Conditions
    "condition without an end": (at_load("", position="load &¦"), "a pattern is missing at the end", "load & !vo"),
    "condition without a beginning": (at_load("", position="¦& load"), "a pattern is missing before '&'", "load &"),
    "condition of nothing": (at_load("", position="load & (¦)"), "a pattern is missing before ')'", "load &"),
    "an open parenthesis": (at_load("", position="load & ¦(ld | ldu"), "'(' is not closed", "write ')'"),
    "a closing parenthesis": (at_load("", position="(load & ld) ¦)"), "')' closes nothing", "open it with '('"),
    "conditions that name no instructions": (at_load("", position="¦func:f & k.cu:3"), "does not say which", "* & "),
    "a negation alone": (at_load("", position="!(¦load | store)"), "does not say which", "* & "),
    "no instruction at all": (at_load("", position="load & !¦*"), "'!*' excludes every instruction", "leave"),
    "a kernel with a condition": (at_load("", position="kernel & ¦load"), "'load' with kernel", "-k"),
    "a condition on kernel": (at_load("", position="load & ¦kernel"), "'kernel' is kernel, and matches no", "-k"),
    "two functions at once": (at_load("", position="load & func:f & ¦func:g"), "a second function", "|"),
    "a condition of no pattern": (at_load("", position="load & (¦LD.x | st)"), "'LD.x' is no pattern", "ld.x"),
    "too many in a condition": (
        at_load("", position=" ¦& ".join(["(ld | st | atom | red)"] * 5)).replace("¦", "", 3),
        "this comes to 1024 alternatives, more than 256", "memory",
    ),
    "too many parentheses": (
        at_load("", position="(" * 32 + "¦(" + "ld" + ")" * 33), "more than 32 levels of parentheses", "|",
    ),
    "exclusion of generic": (at_load("", position="ld ¦!generic"), "'!generic' excludes nothing", "state space"),
    "class with modifiers": (at_load("", position="¦load,global"), "'load,global' is no pattern", "join"),
    "misspelt class": (at_load("", position="¦memry"), "PTX has no instruction 'memry'", ""),
    "narrowed kernel": (at_load("", position="kernel ¦func:f"), "'func:f' after kernel", "-k"),
    "narrowed function": (at_load("", position="func:f ¦!x"), "'!x' after a function", "func:NAME"),
    "narrowed line": (at_load("", position="a.cu:1 ¦!x"), "'!x' after a source line", "* file.cu:42"),
    "call without name": (at_load("", position="st | ¦call:"), "call: without a name", "call:NAME"),
    "range without name": (at_load("", position="ld ¦range:"), "range: without a name", "NEUTRINO_BEGIN(NAME)"),
    "range of another name": (at_load("", position="ld & ¦range:a/b"), "'range:a/b' names no range", "BEGIN"),
    "narrowed range": (at_load("", position="range:a ¦func:f"), "'func:f' after a range", "* range:NAME"),
    "narrowed block": (at_load("", position="block ¦!ld"), "'!ld' does not narrow 'block'", "func:NAME"),
    "instruction at a loop": (at_load("", position="loop-head & ¦load"), "'load' does not narrow 'loop-head'", "range"),
    "loop of an instruction": (at_load("", position="load & ¦back-edge"), "'back-edge' is a place between", "|"),
    "misspelt place": (at_load("", position="¦loop-haed"), "'loop-haed' is no pattern", '"loop-head"'),
    "another name of a place": (at_load("", position="¦loop"), "PTX has no instruction 'loop'", "'loop-head'"),
    "after a place": (
        at_load("", position="ld | ¦back-edge").replace("before =", "after ="), "'back-edge' has no after", "use",
    ),
    "operand at a place": (
        at_load("SAVE [ M ] { ¦ADDR };", position="block"), "ADDR at 'block'", "probe an instruction",
    ),
    "operand at a mark": (at_load("SAVE [ M ] { ¦BYTES };", position="range:a"), "BYTES at a mark", "range:NAME"),
    "function without name": (at_load("", position="¦func:"), "func: without a name", "func:NAME"),
    "two functions": (at_load("", position="ld func:f ¦func:g"), "a second function", "|"),
    "two lines": (at_load("", position="ld a.cu:1 ¦b.cu:2"), "a second source line", "|"),
    "line zero": (at_load("", position="a.cu:¦0"), "line 0 is in no file", "from 1"),
    "line of many digits": (at_load("", position="a.cu:" + "¦" + "9" * 6000), "line 99999", "from 1"),
    "lines backwards": (at_load("", position="a.cu:¦9-3"), "lines 9 to 3 are none", "3-9"),
    "line is a word": (at_load("", position="¦a.cu:x"), "'a.cu:x' names no source line", "file.cu:42"),
    "lines without end": (at_load("", position="ld ¦a.cu:4-"), "'a.cu:4-' names no source line", "file.cu:42"),
    "lanes": (at_load("").replace("level = \"thread\"\nafter", "lanes = ¦\"all\"\nlevel = \"thread\"\nafter"),
              'lanes is "all"', 'use "executing" or "reaching"'),
    "probe key": (at_load("").replace("after =", "¦aftr ="), "unknown key 'aftr'", "did you mean 'after'?"),
    "nothing to insert": (
        f'{MAP}[¦probe.p]\nposition = "kernel"\nlevel = "thread"\n',
        "[probe.p] has no before or after",
        'before = """',
    ),
    "declarations only": (
        f'{MAP}[¦probe.p]\nposition = "kernel"\nlevel = "thread"\nbefore = ".reg .b32 %x;"\n',
        "[probe.p] holds no instruction",
        "fill before or after",
    ),
    "snippet is a number": (
        f'{MAP}[probe.p]\nposition = "kernel"\nlevel = "thread"\nbefore = ¦1\n', "before is 1", "as a text",
    ),
    "level of the map": (
        at_load("", level="warp").replace("SAVE", "¦SAVE"),
        "a warp probe saves to 'M', a thread map",
        'level = "thread"',
    ),
    "no map at all": (
        '¦[probe.p]\nposition = "kernel"\nlevel = "thread"\nbefore = "mov.u32 %x, 1;"\n'.replace("¦[", "¦["),
        "no [map.NAME] in the file",
        "",
    ),
    # Statements
    "declaration": (at_load("¦.reg %c;"), "cannot read the declaration", ".reg .b64 %name;"),
    "register note": (
        at_load("").replace("after =", "register = ¦3\nafter ="), "register is 3", "write { u64 = 2 }",
    ),
    "count of registers": (
        at_load("").replace("after =", "register = { u64 = ¦-1 }\nafter ="), "count of u64 registers is -1", "",
    ),
    "count of no registers": (
        at_load("").replace("after =", "register = { ¦u46 = 1 }\nafter ="), "unknown key 'u46'", "did you mean 'u64'?",
    ),
    "register type": (
        at_load(".reg ¦.b8 %c;"), "registers have no type '.b8'", "use .pred",
    ),
    "register name": (at_load(".reg .b32 ¦c;"), "'c' is no register name", "names begin with '%'"),
    "register twice": (
        at_load(".reg .b32 ¦%a;"), "%a is declared as .b32, and as .u64 in line 11", "one namespace",
    ),
    "register twice, at the first": (
        at_load(".reg .b32 %a;").replace("%a, %b", "¦%a, %b"), "%a is declared as .u64, and as .b32 in line 16", "",
    ),
    "scratch with a value": (
        at_load(".reg .b32 ¦%c$ = 5;"), "%c$ begins with a value, but is lost after each snippet", "without '$'",
    ),
    "special register declared": (at_load(".reg .b32 ¦%tid;"), "%tid is a special register", "another name"),
    "first value of a range": (at_load(".reg .b32 %x<3> = ¦1;"), "one value for 3 registers", "by its own name"),
    "first value too large": (at_load(".reg .u16 %x = ¦65536;"), "'65536' is no value of a .u16", "fits in it"),
    "first value too low": (at_load(".reg .u16 %x = ¦-32769;"), "'-32769' is no value of a .u16", "fits in it"),
    "first value too large for a sign": (at_load(".reg .s16 %x = ¦40000;"), "'40000' is no value of a .s16", "fits"),
    "first value is a fraction": (at_load(".reg .u64 %x = ¦1.5;"), "'1.5' is no value of a .u64", "an integer"),
    "first value of a predicate": (at_load(".reg .pred %x = ¦2;"), "'2' is no value of a .pred", "write 0 or 1"),
    "first value of a half": (at_load(".reg .f16 %x = ¦1.5;"), "'1.5' is no value of a .f16", "the bits"),
    "first value missing": (at_load(".reg .f32 %x =¦;"), "'' is no value of a .f32", "such as 1.5"),
    "first value of many digits": (at_load(f".reg .u64 %x = ¦{'9' * 5000};"), "is no value of a .u64", "fits"),
    "two first values": (
        at_load(".reg .u64 %x = 1;\n.reg .u64 ¦%x = 2;"), "%x begins with another value in line 16", "one first value",
    ),
    "too many registers": (at_load(".reg .b32 ¦%x<1000>;"), "does not declare 1 to 256 registers", "%x<4>"),
    "no registers": (at_load(".reg .b32 ¦%x<0>;"), "does not declare 1 to 256 registers", "a number from 1 on"),
    "no semicolon": (
        at_load("mov.u64 %a, %clock64¦\nadd.u64 %a, %a, 1;"), "no ';' after the statement", "end it with ';'",
    ),
    "no last semicolon": (
        f'{MAP}[probe.p]\nposition = "kernel"\nlevel = "thread"\nbefore = """.reg .u64 %a;\nSAVE [ M ] {{ %a }}¦"""\n',
        "no ';' after the statement",
        "end it with ';'",
    ),
    "comment without end": (at_load("¦/* never closed"), "comment without its end", "close it with '*/'"),
    "save without map": (at_load("¦SAVE.u64 { %a };"), "a SAVE of the older dialect", "declare a [map.NAME]"),
    "save form": (at_load("¦SAVE M %a;"), "cannot read the SAVE", "SAVE [ MAP ] { %a, %b };"),
    "unknown map": (at_load("SAVE [ ¦Mm ] { %a };"), "there is no map 'Mm'", "did you mean 'M'?"),
    "operand count": (
        at_load("¦SAVE [ M ] { %a, %b };"), "2 operands for the 1 field of 'M'", "its fields are value",
    ),
    # The older dialect
    "datamodel in a newer probe": (
        at_load("").replace("after =", '¦datamodel = "warp:16"\nafter ='), "[probe.NAME] has no datamodel", "write [p]",
    ),
    "older key": (older(more="¦datamodle = 3"), "unknown key 'datamodle'", "did you mean 'datamodel'?"),
    "datamodel is a number": (older("¦8"), "datamodel is 8", '"LEVEL:BYTES"'),
    "datamodel is empty": (older('¦""'), 'datamodel is ""', '"LEVEL:BYTES"'),
    "datamodel without bytes": (older('¦"warp"'), 'datamodel is "warp"', '"LEVEL:BYTES"'),
    "datamodel of no bytes": (older('¦"warp:0"'), 'datamodel is "warp:0"', '"LEVEL:BYTES"'),
    "datamodel with spaces": (older('¦"warp: 8"'), 'datamodel is "warp: 8"', '"LEVEL:BYTES"'),
    "datamodel with too much": (older('¦"warp:8:1:1"'), 'datamodel is "warp:8:1:1"', '"LEVEL:TYPE:BYTES:CAP"'),
    "datamodel of no type": (older('¦"warp:ring:8:1"'), 'datamodel is "warp:ring:8:1"', '"LEVEL:TYPE:BYTES:CAP"'),
    "datamodel of no level": (older('¦"wrap:8"'), 'level in datamodel is "wrap"', 'did you mean "warp"?'),
    "datamodel of no cap": (older('¦"warp:8:many"'), 'cap in datamodel is "many"', "a number or count"),
    "datamodel of cap 0": (older('¦"warp:8:0"'), "cap is 0", "from 1 to"),
    "datamodel of a counted sum": (older('¦"warp:sum:8:count"'), 'cap in datamodel is "count"', "a number"),
    "datamodel of a sum of few bits": (
        older('¦"warp:sum:8"', save="SAVE.u16 {1, 2, 3, 4};"), " of a sum is u16", "a sum adds",
    ),
    "datamodel of too few bytes": (
        older('¦"warp:8"', save="SAVE.u64 {1}; SAVE.u32 {2};"), "records of 8 bytes, but what is saved takes 16",
        "write 16 for the 8",
    ),
    "datamodel and level": (older(more='¦level = "warp"'), "both level and datamodel", "remove level"),
    "save without datamodel": (
        f'{older()}[q]\nposition = "kernel"\nafter = "¦SAVE.u64 {{1}};"', "a SAVE without a datamodel", "thread:8",
    ),
    "save of no type": (older(save="SAVE.¦u46 {1};"), 'SAVE has no type "u46"', "use u8, s8"),
    "save of a vector": (older(save="SAVE.¦v2.u32 {1, 2};"), 'SAVE has no type "v2.u32"', "use u8, s8"),
    "save of nothing": (older(save="¦SAVE.u64 {};"), "the SAVE saves nothing", "SAVE.u64 { %a, %b };"),
    "typed save without braces": (older(save="¦SAVE.u64 %a;"), "cannot read the SAVE", "SAVE.u64 { %a, %b };"),
    "sides that save otherwise": (
        older('"warp:8:2"', save="¦SAVE.u64 {1};", more='before = "SAVE.u32 {1, 2};"'),
        "after saves {u64}, before saves {u32, u32}", "one form",
    ),
    "older probe called as a map": (
        f'[¦M]\nposition = "kernel"\ndatamodel = "warp:8"\nafter = "SAVE.u64 {{1}};"\n{at_load("")}',
        "[M] makes a map 'M', which [map.M] is already", "rename",
    ),
    "older probe with a name of no map": (older().replace("[old]", '[¦"a b"]'), "map name 'a b'", "letters, digits"),
    "older and newer probe of one name": (
        f'{at_load("")}[¦p]\nposition = "kernel"\ndatamodel = "warp:8"\nafter = "SAVE.u64 {{1}};"\n',
        "[p] and [probe.p] have one name", "rename",
    ),
    "older probe to no map": (older(save="SAVE [ ¦Mm ] {1};"), "there is no map 'Mm'", "declare [map.Mm]"),
    "older probe without a position": (
        older().replace("[old]", "[¦old]").replace("position", "pos_"), "[old] has no position", "kernel",
    ),
    "a map too many": (
        at_load("SAVE [ M ] { %a };")
        + "".join(
            f'[{"¦" * (number == 64)}map.N{number}]\ntype = "sum"\nlevel = "warp"\ndata = {{ a = "u32" }}\n'
            for number in range(1, 65)
        ),
        "map 65 of the run", "room for 64",
    ),
    "a record too large": (
        '[map.N]\ntype = "array"\nlevel = "warp"\ndata = ¦{ '
        + ", ".join(f'f{i} = "u64"' for i in range(8193)) + f" }}\n{at_load('')}",
        "a record of 65544 bytes", "up to 65536 bytes",
    ),
    "a scale that there is not": (
        '[map.N]\ntype = "histogram"\nscale = ¦"log10"\nlevel = "warp"\ndata = { a = "u32" }\n' + at_load(""),
        "scale is 'log10'", 'scale = "log2"',
    ),
    "a per that there is not": (
        '[map.N]\ntype = "sum"\nlevel = "warp"\nper = ¦"blok"\ndata = { a = "u32" }\n' + at_load(""),
        'per is "blok"', 'did you mean "block"',
    ),
    "a per of records": (
        '[map.N]\ntype = "array"\nlevel = "warp"\nper = ¦"block"\ndata = { a = "u32" }\n' + at_load(""),
        "an array is not combined", "sum, min, max, avg and histogram have it",
    ),
    "a narrow sum of the run": (
        '[map.N]\ntype = "sum"\nlevel = "warp"\nper = ¦"run"\ndata = { a = "u64", b = "u32" }\n' + at_load(""),
        "a sum over the run with the field 'b' of u32", "write u64 or s64",
    ),
    "integers and floats summed over the run": (
        '[map.N]\ntype = "sum"\nlevel = "warp"\nper = ¦"run"\ndata = { a = "u64", b = "f32" }\n' + at_load(""),
        "a sum over the run with integers and floating-point numbers", "write a map for the fields of either kind",
    ),
    "a mean per site": (
        '[map.N]\ntype = "avg"\nlevel = "warp"\nper = ¦"site"\ndata = { a = "u32" }\n' + at_load(""),
        'per is "site", which an avg has not', "the mean is sum / count",
    ),
    "two sums per site": (
        '[map.N]\ntype = "sum"\nlevel = "warp"\nper = ¦"site"\ndata = { a = "u64", b = "u64" }\n' + at_load(""),
        "a sum per site with 2 fields", "write one field, of u8, u16, u32, u64, f32 or f64, and a map for each",
    ),
    "a signed sum per site": (
        '[map.N]\ntype = "sum"\nlevel = "warp"\nper = ¦"site"\ndata = { a = "s64" }\n' + at_load(""),
        "a sum per site with a field of s64", "write one field, of u8, u16, u32, u64, f32 or f64",
    ),
    "a save of the site to a map per site": (
        '[map.N]\ntype = "sum"\nlevel = "thread"\nper = "site"\ndata = { a = "u64" }\n'
        + at_load("¦SAVE [ N ] { SITE, %a };"), "2 operands for the 1 field of 'N'", "its fields are a",
    ),
    "a per finer than the level": (
        '[map.N]\ntype = "max"\nlevel = "warp"\nper = ¦"thread"\ndata = { a = "u32" }\n' + at_load(""),
        "at level warp one thread saves for its warp", 'write per = "warp", or level = "thread"',
    ),
    "older probe called probe": (
        older().replace("[old]", "[probe]").replace("posi", "¦posi"), "[probe] has no name", "write [probe.NAME]",
    ),
}  # fmt: skip


def diagnose(path: Path) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        load_probe_file(path)
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_named_at_its_place(tmp_path: Path, name: str) -> None:
    named_fault(tmp_path / "probe.toml", *WRONG[name])


def test_every_code_is_provoked(tmp_path: Path) -> None:
    faults = [fault_at_mark(tmp_path / "probe.toml", marked) for marked, _, _ in WRONG.values()]
    codes = {fault.code for fault in faults if isinstance(fault, Diagnostic)}
    # These have no place to mark.
    assert not set(FAULTS) & (set(WARNINGS) | set(SNIPPET_FAULTS))
    assert codes - set(SNIPPET_FAULTS) | {"unreadable-file", "not-utf-8", "too-large"} == set(FAULTS)


def test_the_right_file_has_no_fault(tmp_path: Path) -> None:
    """The frame of the cases above is valid: what each of them reports is its own fault."""
    path = tmp_path / "probe.toml"
    path.write_text(at_load(""))
    load_probe_file(path)


def test_all_faults_at_once_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(
        """platform = "cuda"
[map.M]
type = "aray"
level = "warp"
size = 3
data = { a = "u64" }
[map.N]
level = "thread"
sice = 8
data = { a = "u64" }
[probe.p]
positon = "kernel"
level = "thread"
before = "SAVE [ Q ] { %a };"
"""
    )
    error = diagnose(path)
    assert [(item.line, item.message.split(",")[0]) for item in error.diagnostics] == [
        (3, 'type of a map is "aray"'),
        (5, "size is 3"),
        (9, "unknown key 'sice'"),
        (11, "[probe.p] has no position"),
        (12, "unknown key 'positon'"),
        (14, "there is no map 'Q'"),
    ]


def test_a_fault_of_the_last_statement_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(at_load("").replace("{ %a };", "{ %a }"))
    assert len(diagnose(path).diagnostics) == 1


def test_escapes_keep_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    text = at_load("").replace('after = """', 'before = "mov.u32\\t%n,\\u0020%laneidd;"\nafter = """')
    path.write_text(text)
    (fault,) = diagnose(path).diagnostics
    assert text.split("\n")[fault.line - 1][fault.column - 1 :].startswith("%laneidd")


def test_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_bytes(at_load("add.u64 %a, %aa, 1;").replace("\n", "\r\n").encode())
    (fault,) = diagnose(path).diagnostics
    assert (fault.line, fault.column) == (16, 13)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NeutrinoError, match="cannot read the probe file: No such file"):
        load_probes([str(tmp_path / "absent.toml")])
    bad = tmp_path / "latin.toml"
    bad.write_bytes(b'platform = "cuda"\n# caf\xe9\n')
    with pytest.raises(ProbeError, match=r"latin.toml:2:6: error: byte 0xe9 is not UTF-8"):
        load_probe_file(bad)


def test_names_of_probes() -> None:
    with pytest.raises(NeutrinoError, match=r"^block_shed: no such shipped probe; did you mean block_sched\?"):
        load_probes(["block_shed"])
    with pytest.raises(NeutrinoError, match="cannot read the probe file: No such file"):
        load_probes(["mine.py"])
    with pytest.raises(NeutrinoError, match="no probe is named"):
        load_probes([])


def test_faults_of_all_files_are_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f"{name} = oops\n")
    with pytest.raises(ProbeError) as caught:
        load_probes([str(tmp_path / "a.toml"), str(tmp_path / "b.toml")])
    assert [Path(item.file).name for item in caught.value.diagnostics] == ["a.toml", "b.toml"]


def test_one_map_in_two_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(at_load(""))
    with pytest.raises(ProbeError, match=r"b\.toml:1:2: error: map 'M' is also in .*a\.toml"):
        load_probes([str(tmp_path / "a.toml"), str(tmp_path / "b.toml")])


def test_more_maps_in_two_files_than_a_run_has_room_for(tmp_path: Path) -> None:
    # The 65th map is in b; c begins with a map of a.
    names = {"a": range(40), "b": range(40, 70), "c": [0]}
    for name, numbers in names.items():
        maps = "".join(f'[map.M{i}]\nlevel = "warp"\ncap = 2\ndata = {{ a = "u64" }}\n' for i in numbers)
        probe = f'[probe.p]\nposition = "kernel"\nlevel = "warp"\nbefore = "SAVE [ M{numbers[0]} ] {{ 1 }};"\n'
        (tmp_path / f"{name}.toml").write_text(maps + probe)
    with pytest.raises(ProbeError, match=r"b\.toml:97:2: error: map 65 of the run") as caught:
        load_probes([str(tmp_path / f"{name}.toml") for name in names])
    errors = [fault.code for fault in caught.value.diagnostics if fault.severity == "error"]
    assert errors == ["map-count", "map-exists"]
