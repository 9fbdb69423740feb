"""Names that a twin has and its module has not."""

from __future__ import annotations

from dataclasses import dataclass

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
