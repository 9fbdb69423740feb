"""Code that adds amounts to registers that probes share: for all lanes at once where only the sum over them matters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from neutrino.gcn.code import Instruction
from neutrino.gcn.instrument.access_bytes import amount_of
from neutrino.gcn.instrument.additions import MOST_ADDED, Additions
from neutrino.gcn.instrument.code import Mask, Place, Scalar, Vector
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.instrument.frame import Here
from neutrino.gcn.instrument.site_threads import leader


class Counted(NamedTuple):
    """Where amounts go. name: of the register. is_of_lanes: whether each lane adds, rather than the lowest one that is
    active. mask: which lanes do, None for all that are active."""

    name: str
    is_of_lanes: bool
    mask: Mask | None = None


def has_amounts(additions: Additions, instruction: Instruction, wave: int) -> bool:
    """Return whether all is known of an instruction that is added. wave: its lanes."""
    names = {row.amount for row in additions.rows if isinstance(row.amount, str)}
    return all(amount_of(name, instruction, wave) is not None for name in names)


def sums_of(
    additions: Additions, instruction: Instruction, wave: int, conditions: Mapping[str, Place] = MappingProxyType({})
) -> dict[Counted, int]:
    """Return what is added at an instruction, of which all ``has_amounts``. conditions: where predicates are, by name.
    """
    sums: dict[Counted, int] = {}
    for row in additions.rows:
        amount, is_of_lanes = row.amount, True
        if isinstance(amount, str):
            found = amount_of(amount, instruction, wave)
            assert found is not None
            amount, is_of_lanes = found
        mask = None if row.condition is None else conditions[row.condition.name]
        assert mask is None or isinstance(mask, Mask)
        key = Counted(row.name, is_of_lanes, mask)
        sums[key] = sums.get(key, 0) + amount
    return sums


def count(here: Here, sums: Mapping[Counted, int]) -> None:
    """Append code that adds amounts to shared registers. Raises CannotError for one that is too large."""
    code, machine = here.code, here.code.machine
    counts: dict[Mask | None, Scalar] = {}
    for (name, is_of_lanes, mask), amount in sums.items():
        home = here.home_named(name)
        if amount >= MOST_ADDED:
            raise CannotError(f"{amount} for each lane is too much")
        if isinstance(home, Vector):
            _add_in_lanes(here, home, amount, is_of_lanes=is_of_lanes, mask=mask)
            continue
        with code.scope():
            text = f"{amount:#x}"
            if mask is not None and not is_of_lanes:
                part = code.scalar()
                code.emit(f"s_cmp_lg_u{machine.wave} {mask.text}, 0", f"s_cselect_b32 {part.text}, {text}, 0")
                text = part.text
            elif is_of_lanes:
                if mask not in counts:
                    counts[mask] = code.scalar()
                    code.pin(counts[mask])
                    lanes = machine.exec if mask is None else mask.text
                    code.emit(f"s_bcnt1_i32_{machine.mask} {counts[mask].text}, {lanes}")
                source = counts[mask]
                if amount != 1:
                    source = code.scalar()
                    code.emit(f"s_mul_i32 {source.text}, {counts[mask].text}, {text}")
                text = source.text
            code.emit(f"{machine.add} {home.word(0)}, {home.word(0)}, {text}")
            code.emit(f"{machine.add_carry} {home.word(1)}, {home.word(1)}, 0")


def _add_in_lanes(here: Here, home: Vector, amount: int, *, is_of_lanes: bool, mask: Mask | None) -> None:
    """Append code that adds an amount to a VGPR, in the lanes of a ``Counted``."""
    code, machine = here.code, here.code.machine
    if is_of_lanes and mask is None:
        _add(here, home, amount)
        return
    with code.scope():
        outer = code.mask()
        code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
        if not is_of_lanes:
            lowest = leader(code)
            if mask is not None:
                code.emit(f"s_and_{machine.mask} {lowest.text}, {lowest.text}, {mask.text}")
            mask = lowest
        assert mask is not None
        code.emit(f"s_mov_{machine.mask} {machine.exec}, {mask.text}")
        _add(here, home, amount)
        code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")


def _add(here: Here, home: Vector, amount: int) -> None:
    """Append code that adds an amount to a VGPR in each lane that is active."""
    code, machine = here.code, here.code.machine
    vcc = "vcc" if machine.wave == 64 else "vcc_lo"
    literal = f"{amount:#x}"
    if home.words == 1:
        no_carry = "_nc" if machine.generation >= 10 else ""
        code.emit(f"v_add{no_carry}_u32_e32 {home.text}, {literal}, {home.text}")
    elif machine.generation >= 10:
        with code.scope():
            part = code.scalar()
            code.emit(f"s_mov_b32 {part.text}, {literal}")
            code.emit(f"v_add_co_u32 {home.word(0)}, {vcc}, {part.text}, {home.word(0)}")
            code.emit(f"v_add_co_ci_u32_e32 {home.word(1)}, {vcc}, 0, {home.word(1)}, {vcc}")
    else:
        code.emit(f"v_add_co_u32_e32 {home.word(0)}, {vcc}, {literal}, {home.word(0)}")
        code.emit(f"v_addc_co_u32_e32 {home.word(1)}, {vcc}, 0, {home.word(1)}, {vcc}")
