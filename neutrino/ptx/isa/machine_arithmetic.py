"""Which floating-point instructions of the machine an instruction of PTX becomes."""

from __future__ import annotations

from neutrino.ptx.isa.snippet_forms import hidden_arithmetic

# By opcode and type.
_MACHINE_VERB = {"add": "ADD", "sub": "ADD", "mul": "MUL", "fma": "FMA", "mad": "FMA"}
_MACHINE_TYPE = {
    "f32": ("F", ""),
    "f64": ("D", ""),
    "f16": ("H", "2"),
    "f16x2": ("H", "2"),
    "bf16": ("H", "2"),
    "bf16x2": ("H", "2"),
    "f32x2": ("F", "2"),
}


def machine_arithmetic(opcode: str) -> tuple[str, ...]:
    """The floating-point sums, products and fused forms (``FMUL``, ``HADD2`` …) that ptxas makes of an instruction."""
    parts = opcode.split(".")
    verb = _MACHINE_VERB.get(parts[0])
    kind = _MACHINE_TYPE.get(parts[-1])
    return (kind[0] + verb + kind[1],) if verb and kind else hidden_arithmetic(opcode)
