"""The decoder of machine code: it says what nvdisasm says of kernels that ptxas makes here, and refuses the rest."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import corpus_sass
from bench.nvdisasm_reading import Words, unique
from bench.recorded import load
from neutrino.errors import ArgumentError, FormatError, ToolMissingError
from neutrino.sass import decoder
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.encoding import Encoding, architectures, encoding, not_displaced
from neutrino.sass.instruction import Flow, Latency, Memory, RegisterFile
from neutrino.toolchain.location import find_tool

SAMPLE = Path(__file__).parent / "sample.ptx"
TABLES = Path(decoder.__file__).parent / "tables"
MOST_BYTES = 1 << 20
"""Of a table."""
LEAST_DIFFERENT = 150
NOT_RECORDED = {100, 120}
"""Architectures whose tables were compared with whole libraries, but not in the recorded run."""


@pytest.fixture(scope="module", params=architectures(), ids=lambda sm: f"sm_{sm}")
def sm(request: pytest.FixtureRequest) -> int:
    """An architecture with a table, as 90."""
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def cubin(sm: int, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The sample, assembled for an architecture with all its instructions."""
    try:
        find_tool("nvdisasm")
        ptxas = find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(f"{error} (pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm)")
    arch = corpus_sass.tool_arch(sm)
    folder = tmp_path_factory.mktemp("sass")
    source, path = folder / "sample.ptx", folder / "sample.cubin"
    text = SAMPLE.read_text()
    assert ".target sm_90a" in text
    source.write_text(text.replace(".version 8.3", ".version 8.8").replace(".target sm_90a", f".target {arch}"))
    subprocess.run([ptxas, f"-arch={arch}", "-o", path, source], check=True)
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


def wrong(words: Words, sm: int) -> Counter[str]:
    """What nvdisasm and the decoder say differently of words, and what the table lacks."""
    counts: Counter[str] = Counter()
    arch = corpus_sass.tool_arch(sm)
    counts += corpus_sass.differences(words, arch, sm)[0]
    counts += corpus_sass.target_differences(words, arch, sm)[0]
    counts += corpus_sass.role_differences(words, arch, sm, 0)[0]
    return +Counter({name: counts[name] for name in corpus_sass._WRONG})


def test_says_what_nvdisasm_says(words, sm):
    assert len(words) >= LEAST_DIFFERENT
    assert corpus_sass.differences(words, corpus_sass.tool_arch(sm), sm)[0]["read"] == len(words)
    assert wrong(words, sm) == Counter()


def test_nvdisasm_prints_nothing_of_the_control_fields_left_out(words, sm):
    """Why one of several instructions that differ in them alone stands for all."""
    generator = np.random.default_rng(3)
    # A branch's text has its target, which depends on the place in the file.
    words = words[[form is not None and not form.target for form in map(decode(words, sm).form, range(len(words)))]]
    others = words.copy()
    others[:, 1] ^= generator.integers(0, 1 << 63, len(words), np.uint64) & corpus_sass.CONTROL[1]
    arch = corpus_sass.tool_arch(sm)
    said = list(zip(corpus_sass.texts(words, arch), corpus_sass.texts(others, arch), strict=True))
    # Some settings are none that nvdisasm takes, as scoreboard 6.
    legal = [pair for pair in said if pair[1] is not None]
    assert len(legal) > len(words) // 4
    assert all(text == other for text, other in legal)
    both = np.concatenate([words, others])
    assert len(corpus_sass.printed_alike(both)) == len(corpus_sass.printed_alike(words)) <= len(words)


def test_instructions_of_a_kernel(cubin, sm):
    code = decode(read_cubin(cubin, "sample").kernels["loads"].code, sm)
    assert not len(code.unknown)
    vector = next(one for one in code if one.name.startswith("LDG.E.128"))
    assert (vector.memory, vector.memory_bytes, vector.latency) == (Memory.GLOBAL, 16, Latency.VARIABLE)
    assert vector.control.write_barrier is not None
    assert sorted((one.file.value, one.count, one.reads, one.writes) for one in vector.operands) == [
        ("R", 2, True, False), ("R", 4, False, True), ("UR", 2, True, False),
    ]  # fmt: skip
    # Up to sm_89 the text leaves out the uniform registers with the access's descriptor.
    assert [one.file for one in vector.operands if not one.printed] == ([RegisterFile.UNIFORM] if sm < 90 else [])
    assert next(one for one in code if one.base_name == "FFMA").latency is Latency.FIXED
    branches = [one for one in code if one.base_name == "BRA" and one.guard is None]
    assert branches[-1].target == branches[-1].offset
    ends = [one for one in code if one.flow is Flow.EXIT]
    assert any(one.guard is not None and one.guard.file is RegisterFile.PREDICATE for one in ends)
    form = code.form(branches[-1].offset // 16)
    assert form is not None
    assert "address" in (not_displaced(form) or "")
    assert not_displaced(code.form(vector.offset // 16)) is None


def test_masks_are_those_of_the_instructions(words, sm):
    code = decode(words, sm)
    for index, one in enumerate(code):
        for masks, registers in ((code.reads, one.reads()), (code.writes, one.writes())):
            found = set()
            for file, mask in masks.items():
                numbers = int.from_bytes(mask[index].tobytes(), "little")
                found |= {(file, number) for number in range(256) if numbers >> number & 1}
            assert found == registers, one


def test_instructions_before_a_number_may_be_left_out(words, sm):
    whole, begin = decode(words, sm), len(words) // 3
    rest = decode(words, sm, begin=begin)
    assert [rest.form(index) for index in range(len(words))] == [None] * begin + [
        whole.form(index) for index in range(begin, len(words))
    ]
    assert rest.unknown.tolist() == [at for at in whole.unknown.tolist() if at >= begin * 16]
    for file, masks in whole.writes.items():
        for one, other in ((rest.writes[file], masks), (rest.reads[file], whole.reads[file])):
            assert not one[:begin].any()
            assert (one[begin:] == other[begin:]).all()
    assert rest[begin].name == whole[begin].name


def test_unknown_instructions_refuse(words, sm):
    code = decode(np.array([[0xFFF, 0], words[0]], np.uint64), sm)
    assert code.unknown.tolist() == [0]
    assert not any(mask[0].any() for masks in (code.reads, code.writes) for mask in masks.values())
    with pytest.raises(FormatError, match="0000000000000fff"):
        code[0]
    assert code[1].offset == 16
    with pytest.raises(FormatError, match="a multiple of 16"):
        decode(b"12345678", sm)
    with pytest.raises(ArgumentError, match="no table of machine code for sm_7"):
        decode(b"", 7)


def read_table(sm: int) -> dict[str, Any]:
    """An architecture's table, as stored."""
    table: dict[str, Any] = json.loads((TABLES / f"sm_{sm}.json").read_text())
    return table


def test_tables_say_that_they_are_generated(sm):
    assert read_table(sm)["generated"].startswith("by python -m bench.sass_tables")


def test_tables_are_small_and_recorded(sm):
    """The recorded comparison with nvdisasm is of this table, or docs/machine-code.md says that there is none yet."""
    assert (TABLES / f"sm_{sm}.json").stat().st_size <= MOST_BYTES
    recorded = load(corpus_sass.RESULTS)["tables"].get(f"sm_{sm}")
    assert recorded == (None if sm in NOT_RECORDED else corpus_sass.table_hash(sm))


def test_tables_are_read_when_they_are_asked_for():
    done = subprocess.run(
        [sys.executable, "-c", "import neutrino.sass.decoder; from neutrino.sass.encoding import encoding;"
         "encoding(90); print(encoding.cache_info().currsize)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1"]


def faulty_tables(sm: int) -> dict[str, object]:
    """Tables with one fault each."""
    table = read_table(sm)

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
def test_faulty_table_is_noticed(fault, words, sm, monkeypatch):
    table = Encoding(faulty_tables(sm)[fault])
    monkeypatch.setattr(decoder, "encoding", lambda sm: table)
    monkeypatch.setattr(corpus_sass, "encoding", lambda sm: table)
    assert wrong(words, sm)


def test_changed_bits_are_noticed(words, sm):
    """A bit of a register, a guard or a control field gives another reading, or none."""
    kept = [index for index, form in enumerate(decode(words, sm).forms) if form is not None]
    assert kept
    generator = np.random.default_rng(5)
    code = decode(words, sm)
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
        other = decode(changed[None, :], sm)
        if len(other.unknown):
            continue
        one, two = code[index], other[0]
        assert (one.guard, one.operands, one.control, one.name) != (two.guard, two.operands, two.control, two.name)


def test_speed_counts_lookups(words, sm):
    """A form is looked up in the table once, however often it occurs."""
    table = encoding(sm)
    many = np.repeat(words, 50, axis=0)
    code = decode(many, sm)
    assert len(code) == len(many)
    assert len(code.forms) <= len(words)
    before = sum(len(opcode.forms) for opcode in table.opcodes.values())
    decode(many, sm)
    assert sum(len(opcode.forms) for opcode in table.opcodes.values()) == before


def test_bytes_of_accesses_are_those_of_their_registers(sm):
    """Of every form: what a lane reads or writes fits the registers that hold it, as nvdisasm counts them."""
    table = read_table(sm)
    compared = 0
    for row in table["opcodes"].values():
        if row["name"] not in {"LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDC"}:
            continue
        for number in row["shapes"].values():
            shape = table["shapes"][number]
            fields = [(row["fields"][index], count) for index, count, _ in shape["operands"]]
            # A generic store of sm_80 has its data where others have none.
            data = 32 if ["R", 32, 8, 0] in row["fields"] else 64
            place = 16 if row["name"].startswith("LD") else data
            held = [count for (file, at, *_), count in fields if file == "R" and at == place]
            if shape["bytes"] == 32:
                # From sm_100 on: in two groups of four.
                held = [sum(count for (file, at, *_), count in fields if file == "R" and at != 24)]
            assert held == [max(1, shape["bytes"] // 4)], (row["name"], shape)
            compared += 1
    assert compared > 30
