"""What hand-written snippets for AMD's GPUs mean as typed statements, which every generation has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from neutrino.gcn.snippets.forms import FORMS, Meaning
from neutrino.ir.operands import Constant, Immediate, Register, SiteOperand, Value
from neutrino.ir.statements import Assembly, Convert, Load, Operation, Operator
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import ProbeSet, Snippet
from neutrino.probing.ir.structured import Save, Statement

TARGET = "gcn"
"""The target's name."""

_WITH_ZEROS = re.compile(r"[+-]?0\d+", re.ASCII)


def number_of(word: str) -> int:
    """Return the number that an integer in a snippet stands for; leading zeros mean nothing."""
    return int(word) if _WITH_ZEROS.fullmatch(word) else int(word, 0)


def typed(probes: ProbeSet) -> ProbeSet:
    """Return verified probes with their hand-written instructions as typed statements.

    Those that read the hardware, ``s_memtime``, ``s_memrealtime``, ``s_sendmsg_rtn_b64`` and ``s_getreg_b32``, are
    loads of a value that has their name, and what they read as its element.
    """
    added: dict[str, Register] = {}
    changed = tuple(
        probe.with_snippets(lambda one: Snippet(tuple(_meanings(one.statements, added)))) for probe in probes.probes
    )
    return probes.lowered(probes.target, (*probes.registers, *added.values()), changed)


def _meanings(statements: Iterable[Statement], added: dict[str, Register]) -> Iterator[Statement]:
    """Yield typed statements that mean the same as a snippet's statements.

    added: gets the local registers that this takes, by name.
    """
    for statement in statements:
        if isinstance(statement, Assembly):
            yield from _meaning(statement, added)
        elif isinstance(statement, Save):
            operands = tuple(
                Constant(Type(item.type.value), number_of(operand.text) % (1 << 8 * item.type.size))
                if isinstance(operand, Immediate)
                else operand
                for operand, item in zip(statement.operands, statement.map.fields, strict=True)
            )
            yield replace(statement, operands=operands)
        else:
            yield statement


def _meaning(statement: Assembly, added: dict[str, Register]) -> Iterator[Statement]:
    """Yield typed statements that mean the same as one instruction of a snippet.

    added: gets the local registers that this takes, by name.
    """
    form = FORMS[statement.opcode]
    destination, *words = statement.operands
    if form.meaning is Meaning.HARDWARE and isinstance(destination, Register):
        yield Load(destination, SiteOperand(statement.opcode, words[0].text if words else None), statement.span)
        return
    if not isinstance(destination, Register):
        raise TypeError(f"{statement.opcode} writes no register")
    kinds = form.sources[::-1] if form.is_reversed else form.sources
    values: list[Value] = []
    for word, kind in zip(words, kinds, strict=True):
        if isinstance(word, Immediate):
            own = Type(f"u{kind.bits}") if kind.is_untyped else kind
            values.append(Constant(own, number_of(word.text) % (1 << kind.bits)))
        elif isinstance(word, (Register, SiteOperand)):
            values.append(word)
        else:
            raise TypeError(f"{statement.opcode} with an operand of another target")
    if form.is_reversed:
        values.reverse()
    operator, span = form.operator, statement.span
    if operator is None:
        yield Convert(destination, values[0], span)
    elif operator is Operator.MOVE and isinstance(values[0], SiteOperand):
        yield Load(destination, values[0], span)
    elif operator in (Operator.SHL, Operator.SHR):
        # The hardware takes the amount modulo the width.
        most = form.destination.bits - 1
        amount = values[1]
        if isinstance(amount, Constant):
            yield Operation(operator, destination, (values[0], Constant(Type.U32, amount.bits & most)), span)
            return
        masked = added.setdefault("AMOUNT$", Register("AMOUNT$", Type.U32, 0, span, is_local=True))
        yield Operation(Operator.AND, masked, (amount, Constant(Type.U32, most)), span)
        yield Operation(operator, destination, (values[0], masked), span)
    else:
        yield Operation(operator, destination, tuple(values), span)
