"""A kernel's own parameters, which probes read as ``PARAM.0``, ``PARAM.n`` or ``PARAM.0+8.u32``."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.instrument.registers import Kept, UnsupportedError, Value
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.snippets.operands import PARAMETER
from neutrino.ptx.text.inserted import mem, op
from neutrino.ptx.text.module import Parameter

_LOADED = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}
"""Type of a value → the type that it is loaded as, where ``ld`` does not have its own."""
_SCALARS = frozenset({
    *(f"{letter}{width}" for letter in "bus" for width in (8, 16, 32, 64)), "f32", "f64", *_LOADED,
})  # fmt: skip
"""Types of parameters that fit into a register of a probe."""
_HELD = {"b8": "b16", "u8": "u16", "s8": "s16"}
"""Type of a value → that of the register that holds it, where there are no registers of its own."""


@dataclass(frozen=True)
class Part:
    """What a probe reads of a parameter. name: the parameter's; offset: in it, in bytes; type: without its dot.

    is_bits: it is taken as bits without a type.
    """

    name: str
    offset: int
    type: str
    is_bits: bool = False

    @property
    def bits(self) -> int:
        """Bits of the register that it is loaded into."""
        return max(TYPE_BYTES[self.type] * 8, 16)

    def load(self, register: str) -> Instruction:
        """The instruction that loads it, in the kernel's own body."""
        return op(f"ld.param.{_LOADED.get(self.type, self.type)}", register, mem(self.name, self.offset))

    def kept(self, prefix: str) -> Kept:
        """The register that holds it for functions that the kernel calls, which have no access to its parameters.

        prefix: begins every register of probes.
        """
        name = f"{prefix}p_{self.name.replace('%', '_')}_{self.offset}_{self.type}"
        return Kept(name, f"b{self.bits}", "", "", first=self.load(name))

    def value(self, register: str, word: str) -> Value:
        """It, when a register holds it. word: what the probe calls it."""
        used_as = self.type if self.type in _LOADED else None
        kind = f"b{self.bits}" if self.is_bits or used_as else _HELD.get(self.type, self.type)
        return Value(register, kind, None if self.is_bits else used_as, word)


class Parameters:
    """The parameters of one kernel, as a probe may ask for them."""

    def __init__(self, kernel: Callee) -> None:
        """kernel: the kernel, not a function that it calls."""
        self._kernel = kernel

    @cached_property
    def _all(self) -> tuple[Parameter, ...]:
        return self._kernel.module.parameter_layout(self._kernel.function)[0]

    @cached_property
    def states_cluster_size(self) -> bool:
        """Whether the kernel's text says how many blocks a cluster has."""
        kernel = self._kernel
        return ".reqnctapercluster" in kernel.module.code[kernel.function.statement.start : kernel.body.start]

    @property
    def shape(self) -> Hashable:
        """What decides which probes can read them, and how; equal for kernels where they can read the same."""
        return self._all

    def find(self, element: str | None) -> Part:
        """What ``PARAM.element`` is in this kernel. Raises UnsupportedError where there is no such thing."""
        word = f"PARAM.{element}"
        match = PARAMETER.fullmatch(element or "")
        if match is None:
            raise UnsupportedError(f"{word} names no parameter")
        parameter = self._named(match["which"], word)
        offset, type_ = int(match["offset"] or 0), match["type"]
        if self._kernel.body.may_declare(parameter.name) and parameter.name in self._kernel.body.declarations:
            raise UnsupportedError(f"{word}: the kernel's body declares another {parameter.name}")
        is_bits = type_ == "bits"
        if type_ is None or is_bits:
            if parameter.is_array:
                what = f"has {parameter.size} bytes and no type"
                raise UnsupportedError(f"{word}: {parameter.name} {what}; write PARAM.{match['which']}+OFFSET.TYPE")
            if parameter.type not in _SCALARS:
                message = f"{word}: {parameter.name} is .{parameter.type}, which no register of a probe holds"
                raise UnsupportedError(message)
            return Part(parameter.name, 0, parameter.type, is_bits)
        size = TYPE_BYTES[type_]
        if offset + size > parameter.size:
            raise UnsupportedError(f"{word} is beyond {parameter.name}, which has {parameter.size} bytes")
        if offset % size or parameter.align % size:
            raise UnsupportedError(f"{word} is not aligned to its {size} bytes in {parameter.name}")
        return Part(parameter.name, offset, type_)

    def _named(self, which: str, word: str) -> Parameter:
        """The parameter with a number, from 0, or a name. word: for the message. Raises UnsupportedError."""
        count = len(self._all)
        have = f"{self._kernel.function.name} has {count or 'no'} parameter{'' if count == 1 else 's'}"
        if which.isdigit():
            if int(which) >= count:
                raise UnsupportedError(f"{word}: {have}")
            return self._all[int(which)]
        for parameter in self._all:
            if parameter.name == which:
                return parameter
        names = ", ".join(parameter.name for parameter in self._all)
        raise UnsupportedError(f"{word}: {have}" + (f", {names}" if names else ""))
