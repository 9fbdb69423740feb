"""Probe code for kernels that are machine code: written in PTX as for any twin, and assembled by ``ptxas``.

The PTX is the twin of a kernel that does nothing. Its one parameter is as long as those of the kernel that the code is
for, so that the probe block is where it will be; kernels whose blocks differ by a multiple of 16 bytes share the code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from neutrino.errors import MachineCodeError
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.sass.twin.probe_code import ENTRY_ENDS, EXIT_ENDS, Lifted, Shape, lift, split
from neutrino.sass.twin.trampolines import instruction_words
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
    setp.ne.u32 %here, %lanes_below, 0xffffffff;"""
"""A predicate that is true in every lane, which the assembler does not know."""


@dataclass
class ProbeCode:
    """The code of a set of probes for kernels of one architecture, assembled when it is first asked for.

    probes: at kernels' entries and ends alone. arch: sm_90 or sm_90a. assembler: a ``ptxas``.
    """

    probes: ProbeSet
    arch: str
    assembler: Assembler
    _lifted: dict[int, tuple[Lifted, ...]] = field(default_factory=dict)
    _twins: dict[int, TwinKernel] = field(default_factory=dict)

    def at(self, offset: int) -> tuple[Lifted, ...]:
        """Return the code for kernels with the probe block at an offset among their parameters, in bytes: as ``ptxas``
        makes it, and one that takes longer and needs few uniform registers.

        Raises MachineCodeError for probes that cannot be put into machine code, AssemblyError and ToolError for what
        ``ptxas`` cannot do.
        """
        shape = offset % _ALIGNMENT
        if shape not in self._lifted:
            self._lifted[shape] = tuple(
                lift(self._shape(shape + _ALIGNMENT, frugal=frugal), _NAME) for frugal in (False, True)
            )
        return self._lifted[shape]

    @property
    def maps(self) -> tuple[Map, ...]:
        """The maps of the probes, in the order of the probe block, as the twins need them."""
        return self._twin(_ALIGNMENT).maps

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
        return f"{header}{head}{barrier}{_HERE}{tail}"

    def _twin(self, offset: int) -> TwinKernel:
        """Return the twin of the kernel that does nothing, with this much of parameters in front of the block."""
        if offset not in self._twins:
            for probe in self.probes.probes:
                if probe.tracepoint.text != "kernel":
                    raise MachineCodeError(_NAME, f"the probe {probe.name} is at instructions, {probe.tracepoint.text}")
            text = _KERNEL.format(arch=self.arch, name=_NAME, size=offset, barrier=ENTRY_ENDS)
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
        cubin = read_cubin(self.assembler.assemble(self.text(offset, frugal=frugal), self.arch).cubin, _NAME)
        kernel = cubin.kernels[name]
        if kernel.stack:
            raise MachineCodeError(_NAME, f"the probes' code needs {kernel.stack} bytes of stack")
        entry, leave = split(instruction_words(kernel.code), _NAME)
        return Shape(entry, leave, twin.block_offset, twin.block_size, kernel.parameter_base)
