"""Twins that add the bytes of accesses to sums, judged by what nvdisasm prints of the kernel and of its twin.

The kernels are those of the benchmark, and some at random, of every width, under predicates, in loops and branches. The
widths are read off nvdisasm's names here, by a rule of this file's own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from bench.machine_code_sums import KERNELS, SOURCE
from neutrino import load_probes
from neutrino.api import load_probes as load_one_liners
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.twin.cutting import Cutter
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import assemble, instructions, resources, tool

_ACCESS = re.compile(r"(?:@!?P\d )?(LDG|STG|ATOMG|REDG|RED|LDGSTS)((?:\.\w+)*) ")
_FIELDS = {"LDG": 0, "STG": 1, "ATOMG": 2, "REDG": 2, "RED": 2, "LDGSTS": 3}
"""The field of gmem_bytes' map, in cells of 8 bytes, by access."""
_ADDITION = re.compile(r"(@!?P\d )?IMAD\.WIDE\.U32 R(\d+), R(\d+), (0x[0-9a-f]+), R(\d+)$")
_TO_MEMORY = re.compile(
    r"@P(\d) REDG?\.E\.ADD\.64\.STRONG\.GPU (?:desc\[UR\d+\])?\[R(\d+)\.64(?:\+(0x[0-9a-f]+))?\], R(\d+)$"
)
_CHOICE, _COPY = re.compile(r"SEL R(\d+), R\d+, R(\d+), !P\d$"), re.compile(r"MOV R(\d+), R(\d+)$")
_MOVE = re.compile(r"(?:IMAD\.)?MOV(?:\.U32)? R(\d+), (?:RZ, RZ, )?(0x[0-9a-f]+|RZ)$")
RANDOM = 6

Listing = Mapping[int, str]


def _bytes(modifiers: str) -> int:
    """How many bytes a lane's access has, by the modifiers of its name."""
    parts = modifiers.split(".")
    for part, size in (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
        if part in parts:
            return size
    return 4


@dataclass
class Judge:
    """What a twin's text says. one: registers that additions multiply by; sums: field of the map → registers."""

    original: Listing
    twin: Listing
    had: int
    found: list[str] = field(default_factory=list)
    ones: set[int] = field(default_factory=set)
    sums: dict[int, set[int]] = field(default_factory=dict)
    accesses: int = 0

    def judge(self) -> list[str]:
        """Return what is wrong."""
        end = max(self.original) + 16
        for place, text in self.original.items():
            new = self.twin[place].replace(".reuse", "")
            access = _ACCESS.match(text)
            if access is not None and not text.startswith("@!PT"):
                self._access(place, text.replace(".reuse", ""), new, access, end)
            elif place and not re.match(r"(@!?P\d )?EXIT", text) and new != text.replace(".reuse", ""):
                self.found.append(f"{place:#x}: {text} has become {new}")
        self._registers(end)
        return self.found

    def _access(self, place: int, text: str, new: str, access: re.Match[str], end: int) -> None:
        """Judge an access and its trampoline: an addition under the access's guard, the access, the branch back."""
        self.accesses += 1
        branch = re.fullmatch(r"BRA `\((0x[0-9a-f]+)\)", new)
        target = int(branch[1], 16) if branch else -1
        lines = [self.twin.get(target + 16 * index, "").replace(".reuse", "") for index in range(3)]
        added = _ADDITION.match(lines[0])
        if target < end or added is None or lines[1:] != [text, f"BRA `({place + 16:#x})"]:
            self.found.append(f"{place:#x}: {text} has become {new}, {lines}")
            return
        guard, register, one, amount, addend = added.groups()
        wanted = re.match(r"@!?P\d ", text)
        if (guard or "") != (wanted[0] if wanted else "") or register != addend or int(amount, 16) != _bytes(access[2]):
            self.found.append(f"{place:#x}: {lines[0]} for {text}")
        self.ones.add(int(one))
        self.sums.setdefault(_FIELDS[access[1]], set()).add(int(register))

    def _registers(self, end: int) -> None:
        """Judge that sums have registers of their own, begin at 0, and are added to their field at each end."""
        entry = int(self.twin[0].removeprefix("BRA `(").rstrip(")"), 16)
        values: dict[int, str] = {}
        while (line := self.twin[entry]) and (move := _MOVE.match(line)):
            values[int(move[1])] = move[2].replace("RZ", "0x0")
            entry += 16
        registers = {number: next(iter(found)) for number, found in self.sums.items()}
        if any(len(found) > 1 for found in self.sums.values()) or len(set(registers.values())) < len(registers):
            self.found.append(f"the sums are in {self.sums}")
        pairs = {number + index for number in registers.values() for index in (0, 1)}
        if len(self.ones) > 1 or pairs & self.ones or min(pairs | self.ones) < self.had - 2:
            self.found.append(f"the sums are in {pairs}, 1 in {self.ones}, of {self.had} registers")
        expected = dict.fromkeys(pairs, "0x0") | dict.fromkeys(self.ones, "0x1")
        if values != expected:
            self.found.append(f"the entry sets {values}, not {expected}")
        exits = [place for place, text in self.twin.items() if place >= end and text == "EXIT"]
        for place in exits:
            at, added = place - 16, {}
            # By register: what it is the lane's own choice of, and what is moved to it.
            wanted: dict[int, int] = {}
            while at >= end and not re.search(r"\b(EXIT|BRA)\b", self.twin.get(at, "BRA")):
                found, chosen = _TO_MEMORY.match(self.twin[at]), _CHOICE.match(self.twin[at])
                moved = _COPY.match(self.twin[at])
                if found is not None:
                    wanted[int(found[4])] = int(found[3] or "0x0", 16) // 8
                elif chosen is not None and int(chosen[1]) in wanted:
                    wanted[int(chosen[2])] = wanted.pop(int(chosen[1]))
                elif moved is not None and int(moved[1]) in wanted:
                    added[wanted.pop(int(moved[1]))] = int(moved[2])
                at -= 16
            if added != registers:
                self.found.append(f"{place:#x}: the end adds {added}, not {registers}")
        leaving = sum(bool(re.match(r"(@!?P\d )?EXIT", text)) for text in self.original.values())
        if len(exits) != leaving:
            self.found.append(f"{len(exits)} ends, not {leaving}")


def random_kernel(name: str, seed: int) -> str:
    """A kernel with accesses at random: of every width, some under predicates, some in a loop, in branches of it."""
    chosen = random.Random(seed)
    lines = []
    for number in range(chosen.randrange(4, 12)):
        size = chosen.choice((1, 2, 4, 8, 16))
        guard = chosen.choice(("", "@%p1 ", "@!%p1 ", "@%p2 ", "@!%p2 "))
        at = 16 * number
        if size == 16:
            lines.append(f"{guard}ld.global.v2.u64 {{%rd4, %rd5}}, [%rd1+{at}];")
            lines.append(f"{guard}st.global.v2.u64 [%rd2+{at}], {{%rd5, %rd4}};")
        elif size == 8:
            lines += [f"{guard}ld.global.u64 %rd4, [%rd1+{at}];", f"{guard}st.global.u64 [%rd2+{at}], %rd4;"]
        else:
            lines.append(f"{guard}ld.global.u{8 * size} %r5, [%rd1+{at}];")
            lines.append(f"{guard}st.global.u{8 * size} [%rd2+{at}], %r5;")
        if chosen.random() < 0.3:
            kind, value = chosen.choice((("u32", "%r6"), ("u64", "%rd6")))
            lines.append(f"{guard}red.global.add.{kind} [%rd2+{at + 8}], {value};")
        if chosen.random() < 0.2:
            lines.append("@%p3 exit;")
        if chosen.random() < 0.2:
            lines.append(f"@%p2 bra NEXT{number};\nld.global.u32 %r6, [%rd1+{at + 4}];\nNEXT{number}:")
    body = "\n    ".join(lines)
    return f"""
.visible .entry {name}(.param .u64 a, .param .u64 b, .param .u32 n)
{{
    .reg .b64 %rd<8>;
    .reg .b32 %r<8>;
    .reg .pred %p<6>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd3, %r2, 512;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    setp.lt.u32 %p1, %r2, %r1;
    mov.u64 %rd4, 0;
    mov.u64 %rd5, 0;
    cvt.u64.u32 %rd6, %r2;
    mov.u32 %r5, 0;
    mov.u32 %r6, %r2;
    mov.u32 %r7, 0;
AGAIN:
    ld.global.u32 %r4, [%rd1+508];
    setp.gt.s32 %p2, %r4, 0;
    setp.eq.u32 %p3, %r4, 77;
    {body}
    add.u64 %rd2, %rd2, 4096;
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p4, %r7, %r1;
    @%p4 bra AGAIN;
    st.global.u32 [%rd2], %r6;
    ret;
}}
"""


@pytest.fixture(scope="module")
def code() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["gmem_bytes"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    """The benchmark's kernels, and those at random."""
    text = SOURCE.read_text() + "".join(random_kernel(f"random{seed}", seed) for seed in range(RANDOM))
    return Cutter(assemble(text, "sm_90", tmp_path_factory.mktemp("kernels")), "kernels")


def read(cutter: Cutter, code: ProbeCode, kernel: str, folder) -> tuple[Listing, Listing, int]:
    cut = cutter.cut(kernel)
    twin = code.twin_of(cut, kernel, "cut")
    had = resources(cut, kernel, folder)["REG"]
    return instructions(cut, kernel, folder), instructions(twin.data, kernel, folder), had


@pytest.mark.parametrize("kernel", [*KERNELS, *(f"random{seed}" for seed in range(RANDOM))])
def test_each_access_adds_its_bytes(kernel, kernels, code, tmp_path):
    judge = Judge(*read(kernels, code, kernel, tmp_path))
    assert judge.judge() == []
    assert judge.accesses > 1


def _faults(original: Listing, twin: Listing) -> Iterator[tuple[str, Listing]]:
    """Twins with one fault each."""
    first = int(twin[0].removeprefix("BRA `(").rstrip(")"), 16)
    entry = range(first, next(place for place in twin if place > first and twin[place].startswith("LDC R1")))
    for place, text in twin.items():
        added, stored = _ADDITION.match(text), _TO_MEMORY.match(text)
        if added:
            yield "another amount", {**twin, place: text.replace(added[4], "0x20")}
            yield "another guard", {**twin, place: f"@P6 {text.removeprefix(added[1] or '')}"}
            yield "another sum", {**twin, place: re.sub(r"R\d+$", "R0", text)}
            yield "not the access", {**twin, place + 16: "NOP"}
            yield "not back", {**twin, place + 32: "BRA `(0x0)"}
        elif stored:
            yield "not added to memory", {**twin, place: "NOP"}
            yield "another field", {**twin, place: re.sub(r"(?<=\.64)(\+0x\w+)?(?=\])", "+0x20", text)}
        elif place > max(original) and _MOVE.match(text) and place in entry:
            yield "not set", {**twin, place: re.sub(r"0x\w+$", "0x7", text)}
        elif place in original and text != original[place] and _ACCESS.match(original[place]):
            yield "no site", {**twin, place: original[place]}


def test_the_judge_notices_faults(kernels, code, tmp_path):
    original, twin, had = read(kernels, code, "predicated", tmp_path)
    faults = list(_faults(original, twin))
    assert len({name for name, _ in faults}) == 9
    for name, fault in faults:
        assert Judge(original, fault, had).judge(), name


_REFUSED = {
    "generic": ("ld.u32 %r1, [%rd1];", "LD.E at 0x.*the probe load_generic adds more than constants|does more there"),
    "filled": ("cp.async.ca.shared.global [%r2], [%rd1], 16, %r3;", "which its address says"),
    "ignored": ("cp.async.ca.shared.global [%r2], [%rd1], 16, %p1;", "under a second predicate"),
    "none": ("st.shared.u32 [%r2], %r3;", "has no access of memory that the probes are for"),
    "bulk": ("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 64;", "has no code for such accesses"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_kernels_with_an_access_that_cannot_be_counted_are_left_alone(name, code, tmp_path):
    line, reason = _REFUSED[name]
    text = f"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry {name}(.param .u64 a)
{{
    .reg .b64 %rd<2>;
    .reg .b32 %r<4>;
    .reg .pred %p<2>;
    .shared .align 16 .b8 tile[64];
    ld.param.u64 %rd1, [a];
    mov.u32 %r2, tile;
    mov.u32 %r3, %tid.x;
    setp.lt.u32 %p1, %r3, 4;
    mov.u32 %r1, 0;
    {line}
    bar.sync 0;
    st.shared.u32 [%r2+4], %r1;
    bar.sync 0;
    @%p1 trap;
    ret;
}}
"""
    cut = Cutter(assemble(text, "sm_90", tmp_path), name).cut(name)
    with pytest.raises(MachineCodeError, match=reason):
        code.twin_of(cut, name, name)


@pytest.mark.parametrize(
    ("pos", "statement", "reason"),
    [
        ("atom.global", "total += nl.bytes", "may be red.global, where the probe at is not"),
        ("ldu.global", "total += nl.bytes", "may be ld.global, where the probe at is not"),
        ("ld.global.f32", "total += 1", "of which machine code does not tell"),
        ("div", "total += 1", "of which machine code does not tell"),
    ],
)
def test_probes_that_machine_code_cannot_answer_are_refused(pos, statement, reason, kernels, tmp_path):
    tool("ptxas")
    (tmp_path / "probe.py").write_text(f"""
from neutrino import Map, probe
import neutrino.language as nl
total: nl.u64 = 0
@Map(level="thread", type="sum", size=8)
class Total:
    total: nl.u64
@probe(pos="kernel", level="thread", after=True)
def end():
    Total.save(total)
@probe(pos="{pos}", level="thread", before=True)
def at():
    {statement}
""")
    probes = load_probes([str(tmp_path / "probe.py")])
    kernel = "atomics" if pos.startswith("atom") else "widths"
    with pytest.raises(MachineCodeError, match=reason):
        ProbeCode(probes, "sm_90", find_assembler()).twin_of(kernels.cut(kernel), kernel, "cut")


_LANES = """.version 8.0
.target sm_90
.address_size 64
.visible .entry of_lanes(.param .u64 in)
{{
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [in];
    mov.u32 %r1, {special};
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r2, [%rd1];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd1], %r2;
    ret;
}}
"""


@pytest.mark.parametrize("line", ["ld.global { @n = count() }", "st.global { @bytes = hist(BYTES) }"])
def test_what_may_be_of_matrices_is_refused(line, tmp_path):
    """Instructions for matrices, which these probes are not at, read the lane's number in its warp."""
    tool("ptxas")
    code = ProbeCode(load_one_liners([line]), "sm_90", find_assembler())
    for special, refused in (("%tid.x", False), ("%laneid", True)):
        folder = tmp_path / special.strip("%")
        folder.mkdir()
        cut = Cutter(assemble(_LANES.format(special=special), "sm_90", folder), "lanes").cut("of_lanes")
        if not refused:
            assert len(code.twin_of(cut, "of_lanes", "cut").accesses) == 1
            continue
        with pytest.raises(MachineCodeError, match=r"S2R of the lane's number at 0x\w+, .*may be wmma"):
            code.twin_of(cut, "of_lanes", "cut")
