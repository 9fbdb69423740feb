"""Hints of the verifier: how to write an instruction."""

from __future__ import annotations

from neutrino.ptx.isa.forms import REGISTER_TYPES, Form, find_form, forms, operand_type


def example(opcode: str, types: tuple[str, ...], form: Form) -> str:
    """Return an opcode with an operand of the right type in each place, such as ``add.u32 %u32, %u32, %u32;``.

    types: those among its modifiers. form: its row in ``form_table``.
    """
    words = []
    for operand in form.operands:
        # Without the marks of destinations ("="), and of two of them only the first ("t|p?").
        kind = operand.lstrip("=").rstrip("?").partition("|")[0]
        if kind == "lanes":
            words.append("LANES")
        elif kind == "i":
            words.append("1")
        else:
            expected = operand_type(kind, types)
            words.append(f"%{REGISTER_TYPES.get(expected, expected)}")
    return f"{opcode} {', '.join(words)};"


def form_hint(name: str, modifiers: list[str]) -> str:
    """Return what to write in place of an opcode whose modifiers no form has (``form_table``).

    name: the first part of the opcode, which some forms have. The hint lists the forms with the same last modifier,
    which is the type; all forms of the name if there are none.
    """
    type_word = modifiers[-1] if modifiers else ""
    rows = forms()[name]
    # rn: to the nearest float. rni: to the nearest integer.
    for rounding in ("rn", "rni"):
        if find_form(".".join((name, rounding, *modifiers))):
            return f"floating-point instructions carry their rounding: {'.'.join((name, rounding, *modifiers))}"
    if name == "div" and type_word in {"f32", "f64", "f16", "bf16"}:
        return "divisions of fractions become calls: multiply by rcp.approx.f32, or save both and divide afterwards"
    same_type = [row for row in rows if any(type_word in slot.rstrip("?").split("|") for slot in row.modifiers.split())]
    return "known: " + ", ".join(".".join((name, *row.modifiers.split())) for row in same_type or rows)
