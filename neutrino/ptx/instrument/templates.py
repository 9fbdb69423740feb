"""Code with placeholders for registers, which is written again and again for others: kernels have many alike saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.ir.memory import Kept
from neutrino.lazy import lazy
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.text.inserted import Line, Lines


@dataclass(frozen=True)
class Template:
    """PTX code with placeholders for its registers, so that it can be written again for others.

    lines: the code. kinds: of registers that it takes. inputs: names of the statements' registers that it reads, whose
    texts come first. outputs: by name of one that it computes its text, in that form. kept: registers of the map that
    it names. reads, has_shift: of ``ProbeBlock``, what it reads.
    """

    lines: tuple[Line, ...]
    kinds: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    kept: tuple[Kept, ...]
    reads: Mapping[int, str]
    has_shift: bool

    @lazy
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of the template's instructions, in their order."""
        return tuple(opcode for line in self.lines for opcode in line.opcodes)

    @lazy
    def text(self) -> str:
        """The text of the code, with placeholders for ``str.format``."""
        return as_format("\n\t".join(line.text for line in self.lines))

    def write(self, names: dict[str, str], take: Callable[[str], str], lines: Lines) -> None:
        """Append the template's code with registers for its placeholders.

        names: the texts of the statements' registers, to which those that the code computes are added.
        """
        texts = [names[name] for name in self.inputs]
        texts += [take(kind) for kind in self.kinds]
        if self.lines:
            lines.append(_Filled(self, tuple(texts)))
        for name, text in self.outputs:
            names[name] = text.format(*texts)


class _Filled(NamedTuple):
    """The code of a template with certain registers for its placeholders; its text is only made when asked for."""

    template: Template
    registers: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of the lines, with the registers filled in."""
        return self.template.text.format(*self.registers)

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of the lines, in their order."""
        return self.template.opcodes

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the lines, with the registers filled in."""
        fill = self.registers
        return tuple(
            Instruction(
                one.predicate and as_format(one.predicate).format(*fill), one.negated, one.opcode,
                tuple(as_format(operand).format(*fill) for operand in one.operands),
            )
            for line in self.template.lines
            for one in line.instructions
        )  # fmt: skip


def placeholder(number: int) -> str:
    """Return a text that stands for the number-th register of a template until ``as_format`` and ``str.format`` replace
    it."""
    return f"\x01{number}\x02"


def as_format(text: str) -> str:
    """Return a text with placeholders as ``str.format`` takes it."""
    return text.replace("{", "{{").replace("}", "}}").replace("\x01", "{").replace("\x02", "}")
