"""Wrong probe files: each fault at its line and column, with a message and a hint that help.

``¦`` marks the place at which the fault must be reported; it is taken out before the file is read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.errors import NeutrinoError, ProbeError
from neutrino.probing import load_probe_file, load_probes
from neutrino.ptx.snippet import check_snippets

MAP = """[map.M]
type = "array"
level = "thread"
size = 8
data = { value = "u64" }
"""


def at_load(after: str, level: str = "thread", position: str = "ld.global", side: str = "after") -> str:
    """A file with one map, and one probe with this snippet."""
    return f'''{MAP}
[probe.p]
position = "{position}"
level = "{level}"
{side} = """
.reg .u64 %a, %b;
.reg .u32 %n;
.reg .f32 %f;
.reg .pred %p;
.reg .b16 %h;
{after}
SAVE [ M ] {{ %a }};
"""
'''


FAULTS = {
    # The document
    "not toml": ("platform = ¦cuda\n", "not TOML: invalid value", "texts stand in quotes"),
    "key twice": ('platform = "cuda"\nplatform = "cuda"¦\n', "not TOML: cannot overwrite a value", ""),
    "text without end": ('platform = "cuda¦', "not TOML: ", ""),
    "platform": (f'platform = ¦"hip"\n{at_load("")}', 'platform \'hip\' is not supported yet', 'platform = "cuda"'),
    "unknown top key": (f'¦plattform = "cuda"\n{at_load("")}', "unknown key 'plattform'", "did you mean 'platform'?"),
    "unknown top table": (f"{at_load('')}[¦probes.q]\nposition = 1\n", "unknown key 'probes'", "did you mean 'probe'?"),
    "byte order mark": ("¦\ufeff" + at_load(""), "not TOML", "begins with a byte order mark"),
    "arrays in arrays": (f"¦a = {'[' * 50000}", "nested too deeply", ""),
    "a number of many digits": (f"¦a = {'9' * 5000}", "not TOML: ", ""),
    "older dialect": (
        f'{at_load("")}[¦block_sched]\nposition = "kernel"\ndatamodel = "warp:16"\n',
        "[block_sched] is in the older dialect",
        "write [probe.block_sched]",
    ),
    "map is no table": (f"¦map.X = 3\n{at_load('')}", "'map.X' is not a table", "write [map.X]"),
    # Maps
    "size": (at_load("").replace("size = 8", "size = ¦16"), "size is 16, but the fields take 8 bytes", "size = 8"),
    "size is a word": (at_load("").replace("size = 8", 'size = ¦"big"'), 'size is "big"', "write size = 8"),
    "size is true": (at_load("").replace("size = 8", "size = ¦true"), "size is true", "write size = 8"),
    "map type": (at_load("").replace('"array"', '¦"arary"'), 'type of a map is "arary"', 'did you mean "array"?'),
    "map level": (
        at_load("").replace('level = "thread"\nsize', 'level = ¦"grid"\nsize'),
        'level is "grid"',
        'use "thread" or "warp" or "block"',
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
    "sum of floats": (
        at_load("").replace('"array"', '"sum"').replace('"u64"', '¦"f64"'),
        "field 'value' of a sum is f64",
        "a sum adds u32, s32, u64 or s64",
    ),
    "field type": (
        at_load("").replace('"u64"', '¦"int"'), "type of field 'value' is \"int\"", 'use "u8" or "s8"',
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
    "alternative is empty": (at_load("", position="ld||st").replace("||", "|¦|"), "names nothing here", "an opcode"),
    "alternative twice": (at_load("", position="ld | ¦ld"), "'ld' stands there twice", "once"),
    "patterns by commas": (at_load("", position="¦ld,st"), "'ld,st' is no pattern", 'join patterns by "|"'),
    "patterns by spaces": (at_load("", position="ld ¦st"), "'st' does not narrow", 'join patterns by "|"'),
    "exclusion alone": (at_load("", position="¦!tensor"), "'!tensor' is no pattern", "what to match first"),
    "exclusion of none": (at_load("", position="ld ¦!"), "'!' excludes no single modifier", "!prefetch"),
    "exclusion of two": (at_load("", position="ld ¦!a.b"), "'!a.b' excludes no single modifier", "!prefetch"),
    "exclusion of generic": (at_load("", position="ld ¦!generic"), "'!generic' excludes nothing", "state space"),
    "class with modifiers": (at_load("", position="¦load,global"), "'load,global' is no pattern", "join"),
    "misspelt class": (at_load("", position="¦memry"), "PTX has no instruction 'memry'", ""),
    "narrowed kernel": (at_load("", position="kernel ¦func:f"), "'func:f' behind kernel", "-k"),
    "narrowed function": (at_load("", position="func:f ¦!x"), "'!x' behind a function", "opcode"),
    "narrowed line": (at_load("", position="a.cu:1 ¦!x"), "'!x' behind a source line", "opcode"),
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
    "unknown opcode": (
        at_load("", position="¦ldd.global"), "PTX has no instruction 'ldd'", "did you mean 'ld",
    ),
    "after a branch": (
        at_load("", position="¦bra"), "nothing can run after 'bra'", 'position = "kernel"',
    ),
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
    "register type": (
        at_load(".reg ¦.b8 %c;"), "registers have no type '.b8'", "use .pred",
    ),
    "register name": (at_load(".reg .b32 ¦c;"), "'c' is no register name", "names begin with '%'"),
    "register twice": (
        at_load(".reg .b32 ¦%a;"), "%a is declared as .b32, and as .u64 in line 11", "one namespace",
    ),
    "special register declared": (at_load(".reg .b32 ¦%tid;"), "%tid is a special register", "another name"),
    "first value of a range": (at_load(".reg .b32 %x<3> = ¦1;"), "one value for 3 registers", "by its own name"),
    "first value too large": (at_load(".reg .u16 %x = ¦65536;"), "'65536' is no value of a .u16", "fits in it"),
    "first value too low": (at_load(".reg .u32 %x = ¦-1;"), "'-1' is no value of a .u32 register", "fits in it"),
    "first value is a fraction": (at_load(".reg .u64 %x = ¦1.5;"), "'1.5' is no value of a .u64", "an integer"),
    "first value of a predicate": (at_load(".reg .pred %x = ¦2;"), "'2' is no value of a .pred", "write 0 or 1"),
    "first value of a half": (at_load(".reg .f16 %x = ¦1.5;"), "'1.5' is no value of a .f16", "the bits"),
    "first value missing": (at_load(".reg .f32 %x =¦;"), "'' is no value of a .f32", "such as 1.5"),
    "first value of many digits": (at_load(f".reg .u64 %x = ¦{'9' * 5000};"), "is no value of a .u64", "fits"),
    "two first values": (
        at_load(".reg .u64 %x = 1;\n.reg .u64 ¦%x = 2;"), "%x begins with another value in line 16", "one first value",
    ),
    "too many registers": (at_load(".reg .b32 ¦%x<1000>;"), "does not declare 1 to 256 registers", ""),
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
        at_load("¦SAVE [ M ] { %a, %b };"), "2 operands for the 1 fields of 'M'", "its fields are value",
    ),
    # Instructions
    "store": (at_load("¦st.global.u64 [%a], %b;"), "'st.global.u64' is not allowed", "use SAVE"),
    "load": (at_load("¦ld.global.u64 %a, [%b];"), "'ld.global.u64' is not allowed", "reads no memory"),
    "atomic": (at_load("¦atom.global.add.u64 %a, [%b], 1;"), "is not allowed", "use SAVE"),
    "barrier": (at_load("¦bar.sync 0;"), "'bar.sync' is not allowed", "does not synchronise"),
    "shuffle": (
        at_load("shfl.sync.bfly.b32 %n, %n, 1, 31, ¦-1;"), "the mask of 'shfl.sync.bfly.b32' is -1, not LANES", "LANES",
    ),
    "branch": (at_load("@%p ¦bra L;"), "'bra' is not allowed", "straight through"),
    "exit": (at_load("¦exit;"), "'exit' is not allowed", "straight through"),
    "label": (at_load("¦L: add.u64 %a, %a, 1;"), "a label in a snippet", "straight through"),
    "braces": (at_load("mov.b64 ¦{%n, %n}, %a;"), "'{' in a snippet", "vectors are taken apart"),
    "address": (at_load("mov.u64 %a, ¦[%b];"), "'[' in a snippet", "reads no memory"),
    "carry": (at_load("¦add.cc.u32 %n, %n, 1;"), "'add.cc.u32' is not allowed", "carry flag"),
    "unknown instruction": (at_load("¦ad.u64 %a, %a, 1;"), "'ad' is no PTX instruction", "did you mean 'add'?"),
    "unknown form": (
        at_load("¦add.u46 %a, %a, 1;"), "'add.u46' is not a form", "known: add.",
    ),
    "unrounded": (
        at_load("¦add.f32 %f, %f, %f;"), "'add.f32' is not a form", "add.rn|rz|rm|rp.ftz?.sat?.f32",
    ),
    "operands missing": (at_load("¦add.u64 %a, 1;"), "'add.u64' takes 3 operands, not 2", ""),
    "undeclared": (at_load("add.u64 %a, ¦%aa, 1;"), "register %aa is not declared", "did you mean %a?"),
    "undeclared, far": (
        at_load("add.u64 %a, ¦%zebra, 1;"), "register %zebra is not declared", "declare it: .reg .b64 %zebra;",
    ),
    "program's register": (at_load("mov.u64 ¦%rd1, 7;"), "register %rd1 is not declared", ""),
    "destination is a helper": (at_load("mov.u64 ¦OUT, %a;"), "OUT cannot be written", "only registers that it"),
    "destination is special": (at_load("mov.u32 ¦%laneid, 1;"), "%laneid cannot be written", "only registers"),
    "type": (at_load("add.u64 %a, %b, ¦%n;"), "%n is .u32, but 'add.u64' takes .u64 here", "use a .u64 register"),
    "class": (at_load("add.u32 %n, %n, ¦%f;"), "%f is .f32, but 'add.u32' takes .u32", "use a .u32 register"),
    "destination type": (at_load("setp.eq.u32 ¦%n, %n, 1;"), "%n is .u32, but", "use a .pred register"),
    "wide destination": (at_load("mul.wide.u32 ¦%n, %n, %n;"), "takes .u64 here", "use a .u64 register"),
    "narrow source": (
        at_load("cvt.u32.u64 %n, ¦%n;"), "%n is .u32, but 'cvt.u32.u64' takes .u64", "or wider register",
    ),
    "guard": (at_load("@¦%n add.u64 %a, %a, 1;"), "%n is a .u32 register, not a predicate", "declare it .pred"),
    "selector": (at_load("selp.u64 %a, %a, 0, ¦%n;"), "not a predicate", "declare it .pred"),
    "special register in arithmetic": (
        at_load("add.u32 %n, ¦%laneid, 1;"), "'add.u32' cannot read the special register %laneid",
        "mov.u32 %r, %laneid;",
    ),
    "clock is wider": (at_load("mov.u32 %n, ¦%clock64;"), "%clock64 is .u64, but 'mov.u32' takes .u32", ""),
    "vector register": (at_load("mov.u32 %n, ¦%tid;"), "%tid is a vector", "write %tid.x"),
    "integer for a float": (at_load("add.rn.f32 %f, %f, ¦1;"), "'1' is an integer", "write 1.0"),
    "float for an integer": (at_load("add.u64 %a, %a, ¦1.5;"), "'1.5' is not an integer", "takes .u64"),
    "immediate too large": (at_load("mov.u64 %a, ¦0x1ffffffffffffffff;"), "does not fit in 64 bits", ""),
    "immediate of a half": (at_load("add.rn.f16 %h, %h, ¦1.0;"), "'add.rn.f16' takes no immediate", "mov.b16"),
    "misspelt helper": (at_load("mov.u64 %a, ¦ADR;"), "'ADR' is no operand", "did you mean ADDR?"),
    "address is wide": (at_load("mov.u32 %n, ¦ADDR;"), "ADDR has 64 bits, but 'mov.u32'", "cvt.u32.u64 %r, ADDR;"),
    "lookup table": (at_load("lop3.b32 %n, %n, %n, %n, ¦%n;"), "'%n' is not an immediate", "needs a number"),
    "out before": (
        at_load("mov.u64 %a, ¦OUT;", side="before"), "OUT in 'before'", "in 'after' only",
    ),
    "helper at kernel": (
        at_load("mov.u64 %a, ¦IN1;", position="kernel"), "IN1 at 'kernel'", "a kernel has no operands",
    ),
    "out of a copy": (
        at_load("mov.u64 %a, ¦OUT;", position="cp.async.ca"), "OUT of an asynchronous instruction", "not there yet",
    ),
    "predicated save": (at_load("@%p ¦SAVE [ M ] { %a };"), "SAVE under a predicate", "selp"),
    "saved type": (
        at_load("SAVE [ M ] { ¦%n };"), "%n is .u32, but field 'value' is u64", "convert with cvt first",
    ),
    "saved number is too large": (
        at_load("SAVE [ M ] { ¦0x1ffffffffffffffff };"), "does not fit in field 'value', which is u64", "",
    ),
    "saved number is too large for 32 bits": (
        at_load("SAVE [ N ] { ¦0x1FFFFFFFF };") + MAP.replace(".M", ".N").replace("8", "4").replace("u64", "u32"),
        "'0x1FFFFFFFF' does not fit in field 'value', which is u32", "",
    ),
    "saved predicate": (at_load("SAVE [ M ] { ¦%p };"), "%p is .pred, but field 'value' is u64", ""),
    "saved and undeclared": (at_load("SAVE [ M ] { ¦%q };"), "register %q is not declared", ""),
    "not an instruction": (at_load("¦%a = %b + 1;"), "is no instruction", "opcode.type destination"),
}  # fmt: skip


def diagnose(path: Path) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        check_snippets(load_probe_file(path))
    return caught.value


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_place(tmp_path: Path, name: str) -> None:
    marked, message, hint = FAULTS[name]
    assert marked.count("¦") == 1
    before, after = marked.split("¦")
    path = tmp_path / "probe.toml"
    path.write_text(before + after)
    error = diagnose(path)
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    found = [(item.line, item.column) for item in error.diagnostics]
    assert (line, column) in found, str(error)
    fault = error.diagnostics[found.index((line, column))]
    assert message in fault.message
    assert hint in fault.hint
    assert fault.file == str(path)
    assert fault.source == (before + after).split("\n")[line - 1]
    assert str(fault).startswith(f"{path}:{line}:{column}: error: ")


def test_the_right_file_has_no_fault(tmp_path: Path) -> None:
    """The frame of the cases above is sound: what each of them reports is its own fault."""
    path = tmp_path / "probe.toml"
    path.write_text(at_load(""))
    check_snippets(load_probe_file(path))


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


def test_two_faults_of_one_snippet_and_of_two_operands(tmp_path: Path) -> None:
    path = tmp_path / "probe.toml"
    path.write_text(at_load("add.u64 %n, %x, %f;\nbar.sync 0;"))
    assert len(diagnose(path).diagnostics) == 4


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
    with pytest.raises(NeutrinoError, match=r"-p block_shed: no such shipped probe; did you mean block_sched\?"):
        load_probes(["block_shed"])
    with pytest.raises(NeutrinoError, match="probes in Python are not supported yet"):
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
