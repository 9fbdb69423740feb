"""Reads of the probe block: in a kernel from its last parameter, in a called function from the kernel's state."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.abi.probe_block import BLOCK_HEADER, BLOCK_PER_MAP, BLOCK_PER_VARIABLE
from neutrino.ptx.instrument.private_registers import Take
from neutrino.ptx.instrument.values import bits


class ProbeBlock:
    """The probe block as one body reads it. address: a parameter's name, or a register. space: that it is in.

    maps: their number. reads: what was read, offset → type.
    """

    def __init__(self, address: str, space: str, maps: int) -> None:
        self._address = address
        self._space = space
        self._maps = maps
        self.reads: dict[int, str] = {}

    def load(self, kind: str, register: str, offset: int) -> str:
        """The instruction that loads a word at an offset in bytes."""
        self.reads[offset] = kind
        return f"ld.{self._space}.{kind} {register}, [{self._address}{f'+{offset}' if offset else ''}];"

    def load_variable(self, index: int, register: str) -> str:
        """The instruction that loads the address of the index-th module variable."""
        return self.load("u64", register, BLOCK_HEADER + BLOCK_PER_MAP * self._maps + BLOCK_PER_VARIABLE * index)

    def copy(self, words: Mapping[int, str], state: str, take: Take) -> list[str]:
        """Copies of words, offset → type, to the same offsets of the kernel's state."""
        lines = []
        for offset, kind in sorted(words.items()):
            word = take(f"b{bits(kind)}")
            lines += [self.load(kind, word, offset), f"st.local.{kind} [{state}+{offset}], {word};"]
        return lines
