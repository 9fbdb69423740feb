"""Probe code for kernels that are machine code: written in PTX as for any twin, and assembled by ``ptxas``.

The PTX is the twin of a kernel that does nothing. Its one parameter is as long as those of the kernel that the code is
for, so that the probe block is where it will be; kernels whose blocks differ by a multiple of 16 bytes share the code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import overload

from neutrino.backend.sass_access_code import AccessCode
from neutrino.backend.sass_access_sums import AccessSums, access_sums
from neutrino.backend.sass_instructions import COUNTED, InstructionSums, instruction_sums
from neutrino.errors import MachineCodeError
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.counter_placement import FormulaTerm, SumFormula
from neutrino.ptx.instrument.end_sums import EndSums, Word
from neutrino.ptx.instrument.probe_block import ProbeBlock
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import INSTRUCTION_BYTES
from neutrino.sass.twin.access_code import lift_end
from neutrino.sass.twin.access_twin import access_twin
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import code_of
from neutrino.sass.twin.placeholders import DISTANCE, FIRST_OFFSET, KEPT
from neutrino.sass.twin.probe_code import ENTRY_ENDS, EXIT_ENDS, Lifted, Shape, lift, split
from neutrino.sass.twin.probed import ProbedTwin, probed_twin
from neutrino.sass.twin.trampolines import ARCHITECTURES, instruction_words
from neutrino.toolchain.ptxas import Assembler

_NAME = "probe_code"
_ALIGNMENT = 16
"""Of the widest load of constants: code for one block serves others at a distance of so many bytes."""
_KERNEL = """.version 8.0
.target {arch}
.address_size 64
.visible .entry {name}(.param .align 8 .b8 parameters[{size}])
{{
    bar.sync {barrier};
    ret;
}}
"""
_SAMPLE = """.version 8.0
.target {arch}
.address_size 64
.visible .entry {name}(.param .align 8 .b8 parameters[{size}])
{{
    .reg .pred %p;
    .reg .b32 %r<9>;
    .reg .f32 %f<3>;
    .reg .f64 %d;
    .reg .b64 %at;
    .shared .align 4 .b8 kept[4];
    .local .align 4 .b8 own[4];
    mov.u32 %r1, 0;
    mov.u64 %at, 0;
    ld.shared.u32 %r2, [kept];
    st.shared.u32 [kept], %r2;
    ld.local.u32 %r2, [own];
    st.local.u32 [own], %r2;
    ld.global.u32 %r2, [%at];
    st.global.u32 [%at], %r2;
    atom.shared.add.u32 %r2, [kept], %r1;
    red.global.add.u32 [%at], %r1;
    add.u32 %r3, %r2, %r1;
    and.b32 %r3, %r3, %r1;
    shl.b32 %r3, %r3, 1;
    popc.b32 %r3, %r3;
    setp.eq.u32 %p, %r3, %r1;
    selp.b32 %r3, %r2, %r1, %p;
    cvt.rn.f32.u32 %f1, %r3;
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.f32 %f2, %f1, %f1;
    mul.f32 %f2, %f2, %f1;
    ex2.approx.f32 %f2, %f2;
    cvt.f64.f32 %d, %f2;
    fma.rn.f64 %d, %d, %d, %d;
    shfl.sync.bfly.b32 %r4, %r3, 1, 31, 0xffffffff;
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {{%r1, %r2}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%r7, %r8}};
    bar.sync {barrier};
    bra LEAVE;
LEAVE:
    ret;
}}
"""
"""A kernel with instructions of most kinds: what probes at these alone need of their maps its twin says."""
_SUMS = """.version 8.0
.target {arch}
.address_size 64
.visible .entry {name}(.param .align 8 .b8 parameters[{offset}], .param .align 8 .b8 {block}[{size}])
{{
    {declarations}
    {code}
    bar.sync {barrier};
    ret;
}}
"""
"""Of sums that code at accesses adds to: what adds them to memory, with a place in shared memory for each sum."""
_BLOCK = "__neutrino_block"
_NO_SUMS_OVER_LANES = 70
"""An architecture without instructions for them: such registers are the warp's, where groups of lanes take turns."""
_BARRIER = f"bar.sync {ENTRY_ENDS};"
_RETURN = re.compile(r"\bret;(?=\s*\}\s*$)")
_CLOCK = re.compile(r"mov\.u64 (%\w+), %clock64;")
_ACTIVE = re.compile(r"activemask\.b32 (%\w+);")
_UNIFORM = re.compile(
    r"^(\t)(mov\.(?=u32)|ld\.param\.)([bu])(\d+) (%\w+), (%(?:n?ctaid|ntid|smid)\S*|\[__neutrino_block\S*\]);",
    re.MULTILINE,
)
"""Reads of what is the same in all lanes, and of the probe block."""
_HERE = """
    .reg .b32 %lanes_below;
    .reg .pred %here;
    mov.u32 %lanes_below, %lanemask_lt;
    setp.ne.u32 %here, %lanes_below, 0xffffffff;
"""
"""A predicate that is true in every lane, which the assembler does not know."""
_RED = re.compile(r"^(\s*)red\.", re.MULTILINE)
_TOGETHER = """
    .reg .b32 %lanes, %low, %high;
    .reg .b64 %total, %more;
    .reg .pred %whole, %adds;
    vote.sync.ballot.b32 %lanes, %here, 0xffffffff;
    setp.eq.u32 %whole, %lanes, 0xffffffff;
    setp.eq.u32 %adds, %lanes_below, 0;
    @!%whole setp.ne.u32 %adds, %lanes_below, 0xffffffff;
"""
"""Whether all lanes of a warp end together, and whether this one adds to memory."""
_STEP = """
    mov.b64 {{%low, %high}}, %total;
    shfl.sync.down.b32 %low, %low, {distance}, 31, 0xffffffff;
    shfl.sync.down.b32 %high, %high, {distance}, 31, 0xffffffff;
    mov.b64 %more, {{%low, %high}};
    add.u64 %total, %total, %more;
"""
_STEPS = "".join(_STEP.format(distance=distance) for distance in (16, 8, 4, 2, 1))
_ADDED_UP = f"""mov.b64 %total, {{sum}};{_STEPS.replace("{", "{{").replace("}", "}}")}
    selp.b64 {{sum}}, %total, {{sum}}, %whole;
"""
"""Puts the sum over a whole warp into its first lane. Where some lanes are missing, each keeps its own."""
_ADDRESS = re.compile(r"red\.[^\[]*\[(%\w+)")
_ADDRESSES_MOST = 4
"""Maps with sums, at most."""
_FIRST_COUNTED = 90
"""The architecture from which on instructions are counted."""
_USUAL = (2, 3)
"""How many sums most kernels have, the first ones: they load and store, some have atomics as well."""


class _Alternatives(Sequence[Lifted]):
    """Codes for the same probes, each of which is assembled when it is asked for: few kernels need more than the first.
    """

    def __init__(self, make: Sequence[Callable[[], Lifted]]) -> None:
        """make: each, once. Asking for one raises what that does."""
        self._make = make
        self._made: dict[int, Lifted] = {}

    def __len__(self) -> int:
        return len(self._make)

    @overload
    def __getitem__(self, index: int) -> Lifted: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Lifted]: ...
    def __getitem__(self, index: int | slice) -> Lifted | Sequence[Lifted]:
        numbers = range(len(self))[index]
        if not isinstance(numbers, int):
            return [self[number] for number in numbers]
        if numbers not in self._made:
            self._made[numbers] = self._make[numbers]()
        return self._made[numbers]


@dataclass
class ProbeCode:
    """The code of a set of probes for kernels of one architecture, assembled when it is first asked for.

    probes: at kernels' entries and ends; sums of constants at accesses of memory, or at any instructions, which are
    saved at the ends; or others before accesses, and around loads (``AccessCode``). arch: one of ``ARCHITECTURES``.
    assembler: a ``ptxas``. Raises MachineCodeError for probes elsewhere.
    """

    probes: ProbeSet
    arch: str
    assembler: Assembler
    _lifted: dict[int, tuple[Lifted, ...]] = field(default_factory=dict)
    _twins: dict[int, TwinKernel] = field(default_factory=dict)
    _of_sums: dict[tuple[int, tuple[int, ...]], Sequence[Lifted]] = field(default_factory=dict)
    _sums: AccessSums | None = field(default=None, init=False)
    _accesses: AccessCode | None = field(default=None, init=False)
    _instructions: InstructionSums | None = field(default=None, init=False)
    _sample: tuple[bytes, str] | None = field(default=None, init=False)
    """A cubin that was assembled, and the name of its kernel."""

    def __post_init__(self) -> None:
        if all(probe.tracepoint.text == "kernel" for probe in self.probes.probes):
            try:
                self.at(0)
            except MachineCodeError as error:
                # Code for the entry and the ends that branches, or has sums over lanes, may be lowered otherwise.
                self._accesses = AccessCode(self.probes, self.arch, self.assembler)
                try:
                    self._accesses.at(0)
                except MachineCodeError:
                    raise error from None
            return
        # Sums take less time; what they cannot do has code of its own at each access.
        with contextlib.suppress(MachineCodeError):
            self._sums = access_sums(self.probes, _NAME)
        if self._sums is not None and self._sums.is_enough:
            return
        try:
            self._accesses = AccessCode(self.probes, self.arch, self.assembler)
        except MachineCodeError as error:
            # Kernels without the accesses that sums cannot be at may have a twin nevertheless.
            if self._sums is None:
                self._instructions = self._counting(error)

    def _counting(self, error: MachineCodeError) -> InstructionSums:
        """Return the sums of probes that count instructions. error: why they have no code at accesses, which is raised
        for others."""
        if ARCHITECTURES[self.arch] < _FIRST_COUNTED:
            raise error
        try:
            return instruction_sums(self.probes, _NAME)
        except MachineCodeError:
            raise error from None

    def twin_of(self, data: bytes, kernel: str, file: str) -> ProbedTwin:
        """Return a kernel's twin with the probes' code. Parameters and errors: of ``probed_twin``."""
        if self._accesses is not None:
            return access_twin(data, kernel, file, self._accesses.at, self._accesses.kinds)
        if self._instructions is not None:
            counted = self._instructions.counted(ARCHITECTURES[self.arch])
            return probed_twin(data, kernel, file, self.at, counted=counted, counts_of=self._instructions.counts)
        if self._sums is None:
            return probed_twin(data, kernel, file, self.at)
        return probed_twin(data, kernel, file, self.at, self._sums.additions, self._sums.counted)

    def sites(self, data: bytes, kernel: str, file: str, twin: ProbedTwin) -> Iterator[tuple[str, str, int | None]]:
        """Yield where probes are in a kernel that has a twin: the probe's name, an access's, and its number, for each
        access; for probes at the kernel's entry and ends the name, "" and None; for those that count instructions the
        name, what it counts, and None. data, kernel, file: as for
        ``twin_of``."""
        yield from ((probe.name, "", None) for probe in self.probes.probes if probe.tracepoint.text == "kernel")
        if self._instructions is not None:
            yield from ((name, COUNTED, None) for name in self._instructions.names)
            return
        code = decode(code_of(data, kernel, file), ARCHITECTURES[self.arch], kernel)
        for number, place in enumerate(twin.accesses):
            form = code.form(place // INSTRUCTION_BYTES)
            if form is None:
                continue
            if self._accesses is not None:
                names = self._accesses.probes_at[form.name.partition(".")[0], form.memory_bytes]
            else:
                names = self._sums.probes_at(form) if self._sums is not None else ()
            yield from ((name, form.name, number) for name in names)

    def prepare(self, offset: int) -> None:
        """Assemble the code for kernels with the probe block at an offset, in bytes. Raises what ``at`` does."""
        if self._accesses is not None:
            self._accesses.at(offset)
        elif self._instructions is not None:
            return
        elif self._sums is not None:
            numbers = tuple(range(len(self._sums.registers)))
            chosen = {numbers[:count] for count in _USUAL}
            # Each is some runs of the assembler.
            with ThreadPoolExecutor(len(_USUAL)) as pool:
                for made in [pool.submit(list, self.at(offset, used)) for used in chosen]:
                    made.result()
        else:
            self.at(offset)
        # What a twin takes that is computed once.
        if self._sample is not None:
            cubin, name = self._sample
            with contextlib.suppress(MachineCodeError):
                self.twin_of(Cutter(cubin, _NAME).cut(name), name, _NAME)

    def at(self, offset: int, used: tuple[int, ...] = ()) -> Sequence[Lifted]:
        """Return the code for kernels with the probe block at an offset among their parameters, in bytes: as ``ptxas``
        makes it, and one that takes longer and needs few uniform registers. used: the numbers of the sums that
        are kept.

        Raises MachineCodeError for probes that cannot be put into machine code, AssemblyError and ToolError for what
        ``ptxas`` cannot do.
        """
        shape = offset % _ALIGNMENT
        sums = self._sums or self._instructions
        if sums is not None:
            return self._ends(sums, shape, used)
        if shape not in self._lifted:
            self._lifted[shape] = tuple(
                lift(self._shape(shape + _ALIGNMENT, frugal=frugal), _NAME) for frugal in (False, True)
            )
        return self._lifted[shape]

    @property
    def maps(self) -> tuple[Map, ...]:
        """The maps of the probes, in the order of the probe block, as the twins need them."""
        if self._accesses is not None:
            return self._accesses.maps
        return self._twin(_ALIGNMENT).maps

    @property
    def block_size(self) -> int:
        """How many bytes the probe block has, the twins' last parameter."""
        if self._accesses is not None:
            return self._accesses.block_size
        return self._twin(_ALIGNMENT).block_size

    def text(self, offset: int, *, frugal: bool = False) -> str:
        """Return the PTX that is assembled. offset: of the probe block, in bytes, a multiple of 8. frugal: whether what
        all lanes have in common is read lane by lane, so that few uniform registers are needed."""
        head, barrier, tail = self._twin(offset).text().partition(_BARRIER)
        if not barrier:
            raise MachineCodeError(_NAME, "its twin has lost the barrier between entry and end")
        # Uniform registers are the whole warp's, although lanes may end at different times. So what these lanes alone
        # have in common, or see at another time, goes into registers of their own: under a predicate it has to.
        tail = _CLOCK.sub(r"mov.u64 \1, 0;\n\t@%here mov.u64 \1, %clock64;", tail)
        tail = _ACTIVE.sub(r"vote.sync.ballot.b32 \1, %here, 0xffffffff;", tail)
        if frugal:
            tail = _UNIFORM.sub(r"\1mov.b\4 \5, 0;\n\t@%here \2\3\4 \5, \6;", tail)
        # Without an instruction between, the assembler would end the lanes that store nothing first.
        tail = _RETURN.sub(f"bar.sync {EXIT_ENDS};\n\tret;", tail)
        header = f".version 8.0\n.target {self.arch}\n.address_size 64\n"
        return f"{header}{head}{barrier}{_HERE.rstrip()}{tail}"

    def text_of_sums(
        self, sums: AccessSums | InstructionSums, offset: int, used: Sequence[int], *, frugal: bool = False
    ) -> str:  # fmt: skip
        """Return the PTX that adds sums to memory where a thread ends.

        used: the numbers of those that are kept. offset, frugal: as of ``text``.

        Where all lanes of a warp end together, the first one adds what they have together; else each adds its own.
        """
        declared: list[str] = []

        def take(kind: str) -> str:
            name = f"%neutrino{len(declared)}"
            declared.append(f".reg .{kind} {name};")
            return name

        twin = self._twin(offset)
        block = ProbeBlock(_BLOCK, "param", len(twin.maps), "%neutrino_", take)
        ends = EndSums(twin.maps, take, block, _NO_SUMS_OVER_LANES)
        registers = {sums.registers[number].name: take("b64") for number in used}
        words = {name: ends.add_register(Word(text, 64)) for name, text in registers.items()}
        for index, number, value in sums.saves:
            if isinstance(value, int):
                ends.add((index, number), SumFormula(value))
            elif value.name in words:
                term = FormulaTerm(words[value.name], shift=0, width=0, factor=1, most=None)
                ends.add((index, number), SumFormula(0, (term,)))
        # At an address that is the same in all lanes the assembler would take the sums for the same, too.
        slots = [f"[%lanes_below+{FIRST_OFFSET + DISTANCE * (KEPT + at)}]" for at in range(len(used) + _ADDRESSES_MOST)]
        loads = [
            f"ld.volatile.shared.b64 {text}, {slot};" for text, slot in zip(registers.values(), slots, strict=False)
        ]
        code = "\n\t".join(["", *(line.text for line in ends.write())])
        first = _RED.search(code)
        if first is not None and not any(isinstance(value, int) for _, _, value in sums.saves):
            before, adding = code[: first.start()], code[first.start() :]
            # Else the assembler would find the addresses only where it adds, in a branch.
            addresses = dict.fromkeys(_ADDRESS.findall(adding))
            if len(addresses) > _ADDRESSES_MOST:
                raise MachineCodeError(_NAME, f"the probes save sums to {len(addresses)} maps")
            before += "".join(
                f"\n\tst.volatile.shared.b64 {slot}, {text};\n\tld.volatile.shared.b64 {text}, {slot};"
                for text, slot in zip(addresses, slots[len(used) :], strict=False)
            )
            together = [_TOGETHER, *(_ADDED_UP.format(sum=text) for text in registers.values())]
            if len(used) == 1:
                # Likewise for what is added: of a single one the last steps would be in a branch.
                (text,) = registers.values()
                slot = slots[len(used)]
                together.append(f"st.volatile.shared.b64 {slot}, {text};\n\tld.volatile.shared.b64 {text}, {slot};\n\t")
            code = before + "\n\t".join(together) + _RED.sub(r"\1@%adds red.", adding)
        if frugal:
            code = _UNIFORM.sub(r"\1mov.b\4 \5, 0;\n\t@%here \2\3\4 \5, \6;", code)
        return _SUMS.format(
            arch=self.arch, name=_NAME, offset=offset, block=_BLOCK, size=twin.block_size, barrier=EXIT_ENDS,
            declarations="\n    ".join(declared), code=_HERE + "\n    ".join(loads) + code,
        )  # fmt: skip

    def _ends(self, sums: AccessSums | InstructionSums, remainder: int, used: tuple[int, ...]) -> Sequence[Lifted]:
        """Return the code of ``text_of_sums``, assembled once, when it is needed. remainder: of the block's offset."""
        if any(one.initial for number, one in enumerate(sums.registers) if number not in used):
            raise MachineCodeError(_NAME, "the probes have a sum that does not begin with 0")
        if (remainder, used) not in self._of_sums:
            self._of_sums[remainder, used] = _Alternatives(
                [partial(self._end, sums, remainder + _ALIGNMENT, used, frugal=frugal) for frugal in (False, True)]
            )
        return self._of_sums[remainder, used]

    def _end(self, sums: AccessSums | InstructionSums, offset: int, used: tuple[int, ...], *, frugal: bool) -> Lifted:
        twin = self._twin(offset)
        text = self.text_of_sums(sums, offset, used, frugal=frugal)
        kernel = read_cubin(self.assembler.assemble(text, self.arch).cubin, _NAME).kernels[_NAME]
        initial = tuple(register.initial for register in sums.registers)
        sm = ARCHITECTURES[self.arch]
        shape = Shape((), (), twin.block_offset, twin.block_size, kernel.parameter_base, initial, sm)
        return lift_end(instruction_words(kernel.code), used, _ADDRESSES_MOST, shape, _NAME)

    def _twin(self, offset: int) -> TwinKernel:
        """Return the twin of the kernel that does nothing, with this much of parameters in front of the block."""
        if offset not in self._twins:
            text = _KERNEL.format(arch=self.arch, name=_NAME, size=offset, barrier=ENTRY_ENDS)
            module = probe_module(parse(text), self.probes)
            if not module.kernels and self._sums is not None:
                # Probes at accesses alone: what is known of their maps a kernel with accesses says.
                self._twins[offset] = AccessCode(self.probes, self.arch, self.assembler).whole(offset)
                return self._twins[offset]
            if not module.kernels and self._instructions is not None:
                text = _SAMPLE.format(arch=self.arch, name=_NAME, size=offset, barrier=ENTRY_ENDS)
                module = probe_module(parse(text), self.probes)
            if not module.kernels:
                reasons = "; ".join(skip.detail for skip in module.skipped)
                raise MachineCodeError(_NAME, f"the probes have no place at a kernel's entry or end: {reasons}")
            self._twins[offset] = module.kernels[0]
        return self._twins[offset]

    def _shape(self, offset: int, *, frugal: bool) -> Shape:
        """Assemble the code for a probe block at an offset. frugal: as for ``text``."""
        twin = self._twin(offset)
        name = twin.twin_name
        data = self.assembler.assemble(self.text(offset, frugal=frugal), self.arch).cubin
        self._sample = data, name
        kernel = read_cubin(data, _NAME).kernels[name]
        if kernel.stack:
            raise MachineCodeError(_NAME, f"the probes' code needs {kernel.stack} bytes of stack")
        entry, leave = split(instruction_words(kernel.code), _NAME)
        sm = ARCHITECTURES[self.arch]
        return Shape(entry, leave, twin.block_offset, twin.block_size, kernel.parameter_base, sm=sm)
