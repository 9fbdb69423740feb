"""The decoder of machine code: it says what nvdisasm says of kernels that ptxas makes here, and refuses the rest."""

from __future__ import annotations

import copy
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import corpus_sass
from bench.nvdisasm_reading import Words, unique
from neutrino.errors import ArgumentError, FormatError, ToolMissingError
from neutrino.sass import decoder
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.encoding import Encoding, architectures, encoding, not_displaced
from neutrino.sass.instruction import Flow, Latency, Memory, RegisterFile
from neutrino.toolchain.location import find_tool

SAMPLE = Path(__file__).parent / "sample.ptx"
TABLE = Path(decoder.__file__).parent / "tables" / "sm_90.json"
LEAST_DIFFERENT = 150


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The sample, assembled for sm_90a."""
    try:
        find_tool("nvdisasm")
        ptxas = find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(f"{error} (pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm)")
    path = tmp_path_factory.mktemp("sass") / "sample.cubin"
    subprocess.run([ptxas, "-arch=sm_90a", "-o", path, SAMPLE], check=True)
    return path.read_bytes()


@pytest.fixture(scope="module")
def words(cubin: bytes) -> Words:
    """Each different instruction of the sample."""
    kernels = read_cubin(cubin, "sample").kernels.values()
    return unique(np.concatenate([np.frombuffer(kernel.code, "<u8").reshape(-1, 2) for kernel in kernels]))


@pytest.fixture(scope="module", autouse=True)
def asked_once() -> Iterator[None]:
    """The same question goes to nvdisasm once: it says the same, however faulty a table is."""
    said: dict[tuple[str, bytes], Any] = {}

    def once(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def answer(words: Words, arch: str, *_: int) -> Any:
            key = name, words.tobytes()
            if key not in said:
                said[key] = ask(words, arch)
            return said[key]

        return answer

    with pytest.MonkeyPatch.context() as patch:
        for name in ("texts", "roles"):
            patch.setattr(corpus_sass, name, once(name, getattr(corpus_sass, name)))
        yield


def wrong(words: Words) -> Counter[str]:
    """What nvdisasm and the decoder say differently of words, and what the table lacks."""
    counts: Counter[str] = Counter()
    counts += corpus_sass.differences(words, "sm_90a", 90)[0]
    counts += corpus_sass.target_differences(words, "sm_90a", 90)[0]
    counts += corpus_sass.role_differences(words, "sm_90a", 90, 0)[0]
    return +Counter({name: counts[name] for name in corpus_sass._WRONG})


def test_says_what_nvdisasm_says(words):
    assert len(words) >= LEAST_DIFFERENT
    assert corpus_sass.differences(words, "sm_90a", 90)[0]["read"] == len(words)
    assert wrong(words) == Counter()


def test_instructions_of_a_kernel(cubin):
    code = decode(read_cubin(cubin, "sample").kernels["loads"].code, 90)
    assert not len(code.unknown)
    vector = next(one for one in code if one.name.startswith("LDG.E.128"))
    assert (vector.memory, vector.memory_bytes, vector.latency) == (Memory.GLOBAL, 16, Latency.VARIABLE)
    assert vector.control.write_barrier is not None
    assert sorted((one.file.value, one.count, one.reads, one.writes) for one in vector.operands) == [
        ("R", 2, True, False), ("R", 4, False, True), ("UR", 2, True, False),
    ]  # fmt: skip
    assert next(one for one in code if one.base_name == "FFMA").latency is Latency.FIXED
    branches = [one for one in code if one.base_name == "BRA" and one.guard is None]
    assert branches[-1].target == branches[-1].offset
    ends = [one for one in code if one.flow is Flow.EXIT]
    assert any(one.guard is not None and one.guard.file is RegisterFile.PREDICATE for one in ends)
    form = code.form(branches[-1].offset // 16)
    assert form is not None
    assert "address" in (not_displaced(form) or "")
    assert not_displaced(code.form(vector.offset // 16)) is None


def test_masks_are_those_of_the_instructions(words):
    code = decode(words, 90)
    for index, one in enumerate(code):
        for masks, registers in ((code.reads, one.reads()), (code.writes, one.writes())):
            found = set()
            for file, mask in masks.items():
                numbers = int.from_bytes(mask[index].tobytes(), "little")
                found |= {(file, number) for number in range(256) if numbers >> number & 1}
            assert found == registers, one


def test_unknown_instructions_refuse(words):
    code = decode(np.array([[0xFFF, 0], words[0]], np.uint64), 90)
    assert code.unknown.tolist() == [0]
    assert not any(mask[0].any() for masks in (code.reads, code.writes) for mask in masks.values())
    with pytest.raises(FormatError, match="0000000000000fff"):
        code[0]
    assert code[1].offset == 16
    with pytest.raises(FormatError, match="a multiple of 16"):
        decode(b"12345678", 90)
    with pytest.raises(ArgumentError, match="no table of machine code for sm_7"):
        decode(b"", 7)


def test_tables_say_that_they_are_generated():
    for sm in architectures():
        table = json.loads((TABLE.parent / f"sm_{sm}.json").read_text())
        assert table["generated"].startswith("by python -m bench.sass_tables")


def faulty_tables() -> dict[str, object]:
    """Tables with one fault each."""
    table = json.loads(TABLE.read_text())

    def of(opcode: str) -> tuple[dict, dict]:
        changed = copy.deepcopy(table)
        return changed, changed["opcodes"][opcode]

    found = {}
    # IADD3: a source. FFMA: a field too narrow. LDG: its sizes. All: definitions as uses, pairs as triples. BRA: its
    # target. EXIT: its guard.
    found["position"], row = of("210")
    next(field for field in row["fields"] if field[:2] == ["R", 24])[1] = 25
    found["width"], row = of("223")
    next(field for field in row["fields"] if field[:2] == ["R", 64])[2] = 4
    found["name"], row = of("981")
    next(values for _, values in row["groups"] if ["64"] in values.values()).update(
        {key: ["128"] for _, values in row["groups"] for key, names in values.items() if names == ["64"]}
        | {key: ["64"] for _, values in row["groups"] for key, names in values.items() if names == ["128"]}
    )
    found["role"], row = of("20c")
    for shape in found["role"]["shapes"]:
        for operand in shape["operands"]:
            operand[2] = {"^": "v", "v": "^"}.get(operand[2], operand[2])
    found["count"], row = of("986")
    for shape in found["count"]["shapes"]:
        for operand in shape["operands"]:
            operand[1] += operand[1] == 2
    found["target"], row = of("947")
    row["target"] = [[at, width, power + 1] for at, width, power in row["target"]]
    found["guard"], row = of("94d")
    row["guard"] = "UP"
    found["missing"], _ = of("210")
    del found["missing"]["opcodes"]["210"]
    return found


@pytest.mark.parametrize("fault", ["position", "width", "name", "role", "count", "target", "guard", "missing"])
def test_faulty_table_is_noticed(fault, words, monkeypatch):
    table = Encoding(faulty_tables()[fault])
    monkeypatch.setattr(decoder, "encoding", lambda sm: table)
    monkeypatch.setattr(corpus_sass, "encoding", lambda sm: table)
    assert wrong(words)


def test_changed_bits_are_noticed(words):
    """A bit of a register, a guard or a control field gives another reading, or none."""
    kept = [index for index, form in enumerate(decode(words, 90).forms) if form is not None]
    assert kept
    generator = np.random.default_rng(5)
    code = decode(words, 90)
    for _ in range(400):
        index = int(generator.integers(len(words)))
        form = code.form(index)
        bits = [*range(105, 122)]
        for place in form.places:
            bits += range(place.field.low, place.field.low + place.field.bits)
        if form.guard is not None:
            bits += range(12, 16)
        bit = int(generator.choice(bits))
        changed = words[index].copy()
        changed[bit // 64] ^= np.uint64(1 << bit % 64)
        other = decode(changed[None, :], 90)
        if len(other.unknown):
            continue
        one, two = code[index], other[0]
        assert (one.guard, one.operands, one.control, one.name) != (two.guard, two.operands, two.control, two.name)


def test_speed_counts_lookups(words):
    """A form is looked up in the table once, however often it occurs."""
    table = encoding(90)
    many = np.repeat(words, 50, axis=0)
    code = decode(many, 90)
    assert len(code) == len(many)
    assert len(code.forms) <= len(words)
    before = sum(len(opcode.forms) for opcode in table.opcodes.values())
    decode(many, 90)
    assert sum(len(opcode.forms) for opcode in table.opcodes.values()) == before


def test_bytes_of_accesses_are_those_of_their_registers():
    """Of every form: what a lane reads or writes fits the registers that hold it, as nvdisasm counts them."""
    table = json.loads(TABLE.read_text())
    compared = 0
    for row in table["opcodes"].values():
        if row["name"] not in {"LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDC"}:
            continue
        for number in row["shapes"].values():
            shape = table["shapes"][number]
            fields = [(row["fields"][index], count) for index, count, _ in shape["operands"]]
            place = 16 if row["name"].startswith("LD") else 32
            held = [count for (file, at, *_), count in fields if file == "R" and at == place]
            assert held == [max(1, shape["bytes"] // 4)], (row["name"], shape)
            compared += 1
    assert compared > 30
