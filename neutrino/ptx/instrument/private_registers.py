"""Names of our own: registers that inserted code takes, and what else a twin has and its module has not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neutrino.ptx.instrument.values import UnsupportedError

SUFFIX = "__neutrino"
"""Behind a kernel's name that of its twin; behind a function's, with the kernel's, that of its copy."""


@dataclass(frozen=True)
class PrivateNames:
    """Names that occur nowhere in a module's text.

    prefix: begins every register of the probes. block: the parameter with the probe block. state: the kernel's state
    in local memory; state_address: the register with its address. label: begins labels.
    """

    prefix: str
    block: str
    state: str

    @property
    def state_address(self) -> str:
        """The register with the address of the state."""
        return f"{self.prefix}state"

    @property
    def label(self) -> str:
        """What labels begin with."""
        return f"$L__{self.prefix[1:]}"

    @classmethod
    def for_text(cls, text: str) -> PrivateNames:
        """Those for a module: longer ones where its text has the usual ones."""
        prefix = "%neutrino_"
        while prefix in text:
            prefix = prefix[:-1] + "x_"
        block = "__neutrino_block"
        while block in text:
            block += "_"
        state = f"__{prefix[1:]}state"
        while state in text:
            state += "_"
        return cls(prefix, block, state)


_SCRATCH_LETTER = {"b16": "h", "b32": "w", "b64": "d", "pred": "q"}

Take = Callable[[str], str]
"""Type → a register of it that nothing else uses; ``Scratch.take``."""


@dataclass(frozen=True)
class Kept:
    """A register that lives through the kernel. type: without its dot; initial: its first value, as an operand.

    move: the type that ``mov`` takes for it.
    """

    name: str
    type: str
    initial: str
    move: str

    @property
    def declaration(self) -> str:
        """Its ``.reg`` directive."""
        return f".reg .{self.type} {self.name};"


class Scratch:
    """Names of private registers. What is taken is handed out again after ``release(mark)``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._next = dict.fromkeys(_SCRATCH_LETTER, 0)
        self._most = dict.fromkeys(_SCRATCH_LETTER, 0)

    def take(self, kind: str) -> str:
        """A register of type b16, b32, b64 or pred."""
        if kind not in self._next:
            raise UnsupportedError(f"a .{kind} register cannot be copied")
        number = self._next[kind]
        self._next[kind] = number + 1
        self._most[kind] = max(self._most[kind], number + 1)
        return f"{self._prefix}{_SCRATCH_LETTER[kind]}{number}"

    def mark(self) -> dict[str, int]:
        """What is taken now."""
        return dict(self._next)

    def release(self, mark: dict[str, int]) -> None:
        """Hand out again what was taken since the mark."""
        self._next = dict(mark)

    def declarations(self) -> list[str]:
        """``.reg`` directives for all that was ever taken."""
        return [
            f".reg .{kind} {self._prefix}{_SCRATCH_LETTER[kind]}<{most}>;"
            for kind, most in self._most.items()
            if most
        ]
