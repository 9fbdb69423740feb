"""Files made to take long, to need much memory or to crash the reader: each is read or refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neutrino.errors import NeutrinoError, ProbeError
from neutrino.probing.document import MAX_SIZE
from neutrino.verification import load_probe_file, read_probes
from tests.probing.wrong import at_load
from tests.work import counted

SIZE = 1 << 14
_CALLS, _LINES = 100, 400
"""Of Python, for each byte of a file. Most need a tenth; whatever took the square of its size would need thousands."""
_SCANNED = (
    "arrays", "dotted keys", "a script of a long name", "a path of many parts", "open comments", "line ends",
    "spaces in a statement", "spaces in a SAVE", "spaces in a declaration", "a register of a long name",
    "a register of many digits", "alternatives", "colons of a datamodel", "a cap of many digits",
)  # fmt: skip
"""What regular expressions alone go through, whose steps nothing counts: the square of MAX_SIZE would never end."""


def at_position(text: str) -> str:
    return at_load("").replace('"ld.global"', f'"{text}"')


def files(size: int) -> dict[str, str]:
    """The text of each, of about that many bytes."""

    def times(text: str) -> str:
        return text * (size // len(text))

    return {
        "arrays": "a = " + times("["),
        "arrays almost too deep": "a = " + "[" * 490 + "]" * 490,
        "inline tables": "a = " + "{a=" * 400 + "1" + "}" * 400,
        "dotted keys": times("a.") + "b = 1",
        "dotted headers": "".join("[" + "a." * 30 + f"b{index}]\n" for index in range(size // 70)),
        "arrays of tables": times("[[probe]]\n"),
        "tables": "".join(f"[probe.p{index}]\n" for index in range(size // 15)),
        "unknown keys": "".join(f"k{index} = 1\n" for index in range(size // 12)),
        "colons": "a = {" + ", ".join(f'"k{index}": 1' for index in range(max(size, 1 << 16) // 14)) + "}",
        "fields": '[map.M]\nlevel = "thread"\ndata = {' + ", ".join(f'a{i} = "u8"' for i in range(size // 16)) + "}",
        "scripts": 'analyze_hook = [' + times('"a",') + "]",
        "a script of a long name": f'callback = "{times("a")}"',
        "a path of many parts": f'callback = "{times("../")}"',
        "open comments": at_load(times("/*")),
        "line ends": at_load(times("\n")),
        "spaces in a statement": at_load("x" + times(" ") + "y"),
        "spaces in a SAVE": at_load("SAVE [" + times(" ") + "M"),
        "spaces in a declaration": at_load(".reg .u32 %x" + times(" ") + "y;"),
        "semicolons": at_load(times(";")),
        "no semicolons": at_load(times("mov.u32 %n, %n\n")),
        "saves": at_load(times("SAVE [ M ] { 1 };")),
        "operands": at_load(f"SAVE [ M ] {{ {times('1,')} }};"),
        "registers": at_load(f".reg .u32 {', '.join(f'%a{index}' for index in range(size // 9))};"),
        "registers again and again": at_load(times(".reg .u32 %x<256>;")),
        "a register of a long name": at_load(f".reg .u32 %{times('x')};"),
        "a register of many digits": at_load(f"add.u32 %n, %n, %{times('1')}x;"),
        "typed saves": '[p]\nposition = "ld"\ndatamodel = "thread:9999"\nafter = "' + times("SAVE.u8{1};") + '"',
        "typed saves of a changing register": '[p]\nposition = "ld"\ndatamodel = "thread:9999"\nafter = ".reg .b16 %a;'
        + times("SAVE.u8{%a};mov %a;") + '"',
        "alternatives": at_position(times("|")),
        "words of a position": at_position("ld " + times("!a ")),
        "words of a function's name": at_position("func:" + times("a ")),
        "parts of an opcode": at_position("ld" + times("._")),
        "colons of a datamodel": f'[p]\ndatamodel = "{times(":")}"\n',
        "a cap of many digits": at_load("").replace("size = 8", "cap = 0x" + times("f")),
        "quotes": 'a = """' + times('""a') + '"""',
        "continued lines": 'a = """' + times("\\\n") + '"""',
        "escapes": at_load(times("\\u0041")),
        "control characters": "\x00" * 100,
    }  # fmt: skip


def read(text: str) -> None:
    try:
        read_probes("hostile.toml", text)
    except ProbeError as error:
        faults = error.diagnostics
        assert all(fault.code for fault in faults)
        assert all(len(fault.message) < 400 and len(fault.hint) < 400 for fault in faults)
        assert all(character.isprintable() for fault in faults for character in fault.message + fault.hint)


@pytest.mark.parametrize("name", files(SIZE))
def test_files_of_the_worst_kind(name: str) -> None:
    text = files(SIZE)[name]
    with counted(lines=True) as work:
        read(text)
    assert work.calls < _CALLS * len(text)
    assert work.lines < _LINES * len(text)


@pytest.mark.parametrize("name", _SCANNED)
def test_long_texts_are_scanned_once(name: str) -> None:
    text = files(MAX_SIZE - 1000)[name]
    assert MAX_SIZE // 2 < len(text) <= MAX_SIZE
    read(text)


def test_files_that_are_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    for text in ("#" * (MAX_SIZE + 1), "#" * (5 * MAX_SIZE)):
        path.write_text(text)
        with pytest.raises(ProbeError, match="more than 524288") as caught:
            load_probe_file(path)
        assert [fault.code for fault in caught.value.diagnostics] == ["too-large"]
    os.truncate(path, 1 << 40)
    with pytest.raises(ProbeError, match="more than 524288"):
        load_probe_file(path)
    with pytest.raises(NeutrinoError, match="it is a device, expected a file"):
        load_probe_file("/dev/zero")
    with pytest.raises(NeutrinoError, match="Is a directory"):
        load_probe_file(tmp_path)
    with pytest.raises(NeutrinoError, match="cannot read the probe file"):
        load_probe_file("a\0b.toml")
