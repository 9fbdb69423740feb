"""Code that counts in memory: how often threads came to a cell, and what was saved with a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neutrino.maps.regions import COPIES_MOST
from neutrino.maps.target import KeyTable
from neutrino.ptx.instrument.registers import Take

_MOST = 1 << 26
"""What a thread counts in its register, so that the sum over 32 lanes fits in 32 bits."""
_NONE = -1
"""The cell of threads that count nothing."""
# Of tables of keys. A word is 8 bytes; the multiplier is 2 to the 64 divided by the golden ratio, so that keys at any
# stride spread over the table; and the sum of so many bits over 32 lanes fits in 32 bits.
_WORD = 8
_MULTIPLIER = 0x9E3779B97F4A7C15
_ADDED_BITS = 27


@dataclass(frozen=True)
class RunCode:
    """Writes the code of one map that counts to cells: as long as a thread comes to the same one, in a register.

    Values that histograms count repeat: bytes of an access, trips of a loop. So a save compares the cell with the last
    one; only where it is another, the count goes to memory, added up over the lanes that had the same cell.

    last, count: registers of 32 bits that each thread keeps to its end, at first 0: the cell, and how often it came to
    it since. address: appends the code for a register with the address of cell 0, and returns it. take: gives a new
    register.
    """

    last: str
    count: str
    address: Callable[[list[str]], str]
    take: Take

    def save(self, cell: str, lines: list[str], when: str | None) -> None:
        """Append the code that counts one to a cell, in a register. It branches, but only forward, to a label of its
        own, and may not stand between a product and its sum. when: a predicate for the threads that count; None for
        all."""
        take = self.take
        # Labels are local to braces, so that the text can be inserted again elsewhere.
        label = f"${self.last[1:]}_same"
        here, changes = take("b32"), take("pred")
        some = take("pred")
        lines += ["{", f"activemask.b32 {here};"]
        if when:
            # In the others the cell stays.
            new = take("b32")
            lines.append(f"selp.b32 {new}, {cell}, {self.last}, {when};")
            cell = new
        lines += [
            f"setp.ne.u32 {changes}, {cell}, {self.last};",
            f"setp.ge.or.u32 {changes}, {self.count}, {_MOST}, {changes};",
            f"vote.sync.any.pred {some}, {changes}, {here};",
            f"@!{some} bra {label};",
        ]
        self._add(here, changes, lines)
        lines += [
            f"@{changes} mov.u32 {self.last}, {cell};",
            f"@{changes} mov.u32 {self.count}, 0;",
            f"{label}:",
            f"{f'@{when} ' if when else ''}add.u32 {self.count}, {self.count}, 1;",
            "}",
        ]

    def end(self, lines: list[str]) -> None:
        """Append the code where a thread ends: what it has counted goes to memory."""
        here, has_any = self.take("b32"), self.take("pred")
        lines += [f"activemask.b32 {here};", f"setp.ne.u32 {has_any}, {self.count}, 0;"]
        self._add(here, has_any, lines)

    def _add(self, here: str, adds: str, lines: list[str]) -> None:
        """Append the code that adds the counts of the lanes for which adds holds to their cells, in memory."""
        take = self.take
        cell, same, lower, total, wide, leads = (
            take("b32"), take("b32"), take("b32"), take("b32"), take("b64"), take("pred")
        )  # fmt: skip
        lines += [
            # Other lanes are a group of their own: each instruction between lanes is executed by all of its mask.
            f"selp.b32 {cell}, {self.last}, {_NONE}, {adds};",
            f"match.any.sync.b32 {same}, {cell}, {here};",
            f"redux.sync.add.u32 {total}, {self.count}, {same};",
            f"mov.u32 {lower}, %lanemask_lt;",
            f"and.b32 {lower}, {lower}, {same};",
            f"setp.eq.and.u32 {leads}, {lower}, 0, {adds};",
            f"setp.ne.and.u32 {leads}, {total}, 0, {leads};",
            f"cvt.u64.u32 {wide}, {total};",
        ]
        base = self.address(lines)
        # A cell is a u64.
        lines += [f"mad.wide.u32 {base}, {cell}, 8, {base};", f"@{leads} red.global.add.u64 [{base}], {wide};"]


class KeyCode:
    """Appends to lines the code that adds a save to the entry of its key in a table in memory (``maps/keyed.py``).

    A key has a fixed number of places, which are tried one after the other, without a branch. take: gives a new
    register of a type (``Take``). key: a register of 64 bits; or the number of an entry, which is not searched for.
    value: a register of a value and its bits, 32 or 64; None without one. table: its form.
    """

    def __init__(
        self, take: Take, lines: list[str], key: str | int, value: tuple[str, int] | None, table: KeyTable
    ) -> None:
        self._take = take
        self._lines = lines
        self._key = key
        self._value = value
        self._table = table
        self._entry_size = _WORD * (2 + len(table.keep))

    def write(self, base: str, saves: str | None, *, combine: bool) -> None:
        """Append the code. base: a register with the table's address. saves: a predicate for the threads that save,
        None for all. combine: lanes of a warp with equal keys are combined, of which one adds for all."""
        adds, count, aggregates = self._combined(saves) if combine else self._alone(saves)
        address, offset = base, 0
        if isinstance(self._key, int):
            offset = self._key * self._entry_size
        else:
            address = self._find(base, self._key, adds)
        reds = [("add", count)]
        reds += [("add" if name == "sum" else "max", aggregates[name]) for name in self._table.keep]
        # Next to each other, so that in the machine code one branch skips all of them.
        for number, (operation, register) in enumerate(reds, 1):
            where = f"{address}+{offset + _WORD * number}"
            self._lines.append(f"@{adds} red.global.{operation}.u64 [{where}], {register};")

    def write_once(self, address: Callable[[str], str], saves: str | None, label: str, copies: int) -> None:
        """As ``write`` with combine, for an entry with a number: one lane adds for all that are here. It branches, but
        only forward, to labels of its own, and may not stand between a product and its sum.

        address: appends the code for a register with the table's address, and returns it, given ``lower`` of
        ``copy_address``. label: begins the labels. copies: the most that the table has; from as many multiprocessors
        on others of the entry's places are taken, too.
        """
        take, lines = self._take, self._lines
        here, lower, count, adds = take("b32"), take("b32"), take("b64"), take("pred")
        saving = here
        # Labels are local to braces, so that the text can be inserted again elsewhere.
        lines += ["{", f"activemask.b32 {here};"]
        if saves is not None:
            saving = take("b32")
            lines.append(f"vote.sync.ballot.b32 {saving}, {saves}, {here};")
        aggregates = self._over_lanes(here, saves, f"{label}_sum")
        lines += [
            f"mov.u32 {lower}, %lanemask_lt;",
            f"and.b32 {lower}, {lower}, {here};",
            f"setp.eq.u32 {adds}, {lower}, 0;",
        ]
        if saves is not None:
            lines.append(f"setp.ne.and.u32 {adds}, {saving}, 0, {adds};")
        number = take("b32")
        lines += [f"@!{adds} bra {label}_end;", f"popc.b32 {number}, {saving};", f"cvt.u64.u32 {count}, {number};"]
        base = address(lower)
        period = self._table.period
        # How many places of an entry are used.
        uses = min(self._table.places // period, COPIES_MOST // copies) if period else 1
        if uses > 1:
            use = take("b32")
            lines += [
                f"mov.u32 {use}, %smid;",
                f"bfe.u32 {use}, {use}, {copies.bit_length() - 1}, {uses.bit_length() - 1};",
                f"mad.wide.u32 {base}, {use}, {period * self._entry_size}, {base};",
            ]
        wide = {}
        for name, register in aggregates.items():
            wide[name] = register
            if self._given()[1] == 32 and name != "sum":
                wide[name] = take("b64")
                lines.append(f"cvt.u64.u32 {wide[name]}, {register};")
                if name == "min":
                    lines.append(f"not.b64 {wide[name]}, {wide[name]};")
        offset = int(self._key) * self._entry_size
        reds = [("add", count), *(("add" if name == "sum" else "max", wide[name]) for name in self._table.keep)]
        for word, (operation, register) in enumerate(reds, 1):
            lines.append(f"red.global.{operation}.u64 [{base}+{offset + _WORD * word}], {register};")
        # Together again, as the program had them.
        lines += [f"{label}_end:", f"bar.warp.sync {here};", "}"]

    def _over_lanes(self, here: str, saves: str | None, label: str) -> dict[str, str]:
        """By its name, a register with each aggregate of the value over all lanes that are here, of those that save.

        Of a value of 32 bits ``min`` and ``max`` have 32, and ``min`` is not inverted. saves: as of ``write``. label: a
        name for one.
        """
        if not self._table.keep:
            return {}
        take, lines, keep = self._take, self._lines, self._table.keep
        value = self._given()
        name, bits = value
        results: dict[str, str] = {}
        # Lanes that save nothing have the value that changes nothing.
        least = greatest = name
        if saves is not None:
            least, greatest = take(f"b{bits}"), take(f"b{bits}")
            lines += [f"selp.b{bits} {least}, {name}, -1, {saves};", f"selp.b{bits} {greatest}, {name}, 0, {saves};"]
        for aggregate in ("min", "max"):
            if aggregate not in keep:
                continue
            self._value = (least if aggregate == "min" else greatest), bits
            if bits == 64:
                results[aggregate] = self._greatest(here, inverted=aggregate == "min")
            else:
                results[aggregate] = take("b32")
                lines.append(f"redux.sync.{aggregate}.u32 {results[aggregate]}, {self._value[0]}, {here};")
        if "sum" in keep:
            self._value = greatest, bits
            results["sum"] = self._short_sum(here, results["max"], label) if bits == 32 and "max" in keep else (
                self._sum(here)
            )  # fmt: skip
        self._value = value
        return results

    def _short_sum(self, here: str, greatest: str, label: str) -> str:
        """As ``_sum`` of a value of 32 bits whose greatest is known: mostly the sum fits into 32 bits, too."""
        small, low = self._take("pred"), self._take("b32")
        name, _ = self._given()
        self._lines += [
            f"redux.sync.add.u32 {low}, {name}, {here};",
            f"setp.lt.u32 {small}, {greatest}, {1 << _ADDED_BITS};",
        ]
        total = self._take("b64")
        self._lines += [f"cvt.u64.u32 {total}, {low};", f"@{small} bra {label};"]
        exact = self._sum(here)
        self._lines += [f"mov.b64 {total}, {exact};", f"{label}:"]
        return total

    def _alone(self, saves: str | None) -> tuple[str, str, dict[str, str]]:
        """What each thread adds for itself: a predicate, whether it adds; a count; and the aggregates of the value."""
        adds, count = saves or self._take("pred"), self._take("b64")
        self._lines.append(f"mov.u64 {count}, 1;")
        if saves is None:
            self._lines.append(f"setp.ne.u64 {adds}, {count}, 0;")
        aggregates = {name: self._wide(inverted=name == "min") for name in self._table.keep}
        return adds, count, aggregates

    def _combined(self, saves: str | None) -> tuple[str, str, dict[str, str]]:
        """As ``_alone``, of all lanes with the key together: the lowest of them adds, for all."""
        take, lines = self._take, self._lines
        here, lower, count, adds = take("b32"), take("b32"), take("b64"), take("pred")
        same = here
        lines.append(f"activemask.b32 {here};")
        if not isinstance(self._key, int):
            same = take("b32")
            lines.append(f"match.any.sync.b64 {same}, {self._key}, {here};")
        if saves is not None:
            # Lanes that save nothing are a group of their own: each instruction between lanes is executed by all of its
            # mask.
            saving, others = take("b32"), take("b32")
            lines += [
                f"vote.sync.ballot.b32 {saving}, {saves}, {here};",
                f"not.b32 {others}, {saving};",
                f"selp.b32 {saving}, {saving}, {others}, {saves};",
                f"and.b32 {same}, {same}, {saving};",
            ]
        lines += [
            f"mov.u32 {lower}, %lanemask_lt;",
            f"and.b32 {lower}, {lower}, {same};",
            f"setp.eq{'.and' if saves else ''}.u32 {adds}, {lower}, 0{f', {saves}' if saves else ''};",
            f"popc.b32 {lower}, {same};",
            f"cvt.u64.u32 {count}, {lower};",
        ]
        aggregates = {}
        for name in self._table.keep:
            aggregates[name] = self._sum(same) if name == "sum" else self._greatest(same, inverted=name == "min")
        return adds, count, aggregates

    def _find(self, base: str, key: str, adds: str) -> str:
        """A register with the address of the key's entry, or of the last one if the key finds no place."""
        take, lines, places = self._take, self._lines, self._table.places
        word, mixed, first, place, step = take("b64"), take("b64"), take("b32"), take("b32"), take("b32")
        old, address, lost, searches = take("b64"), take("b64"), take("b64"), take("pred")
        lines += [
            f"not.b64 {word}, {key};",
            # The upper half of the product depends on all bits of the key.
            f"shr.u64 {mixed}, {key}, 32;",
            f"xor.b64 {mixed}, {mixed}, {key};",
            f"mul.lo.u64 {mixed}, {mixed}, {_MULTIPLIER};",
            f"shr.u64 {mixed}, {mixed}, 32;",
            f"cvt.u32.u64 {first}, {mixed};",
            f"shr.u32 {place}, {first}, {32 - (places.bit_length() - 1)};",
            # Odd, so that all places would be tried in turn.
            f"or.b32 {step}, {first}, 1;",
            # The key whose inverse is 0 has an entry of its own: nothing is put into it, and it is found at once.
            f"setp.eq.u64 {searches}, {word}, 0;",
            f"selp.b32 {place}, {places}, {place}, {searches};",
            f"mov.b64 {old}, 0;",
            f"mov.b64 {address}, {base};",
            f"mov.pred {searches}, {adds};",
        ]
        for number in range(self._table.probes):
            if number:
                lines += [f"add.u32 {place}, {place}, {step};", f"and.b32 {place}, {place}, {places - 1};"]
            lines += [
                f"@{searches} mad.wide.u32 {address}, {place}, {self._entry_size}, {base};",
                f"@{searches} atom.global.cas.b64 {old}, [{address}], 0, {word};",
                # Neither free nor the key's.
                f"setp.ne.and.u64 {searches}, {old}, 0, {searches};",
                f"setp.ne.and.u64 {searches}, {old}, {word}, {searches};",
            ]
        lines += [
            f"add.u64 {lost}, {base}, {(places + 1) * self._entry_size};",
            f"selp.b64 {address}, {lost}, {address}, {searches};",
        ]
        return address

    def _wide(self, *, inverted: bool) -> str:
        """A register of 64 bits with the value, or with all bits of it inverted."""
        name, bits = self._given()
        wide = self._take("b64")
        self._lines.append(f"cvt.u64.u32 {wide}, {name};" if bits == 32 else f"mov.b64 {wide}, {name};")
        if inverted:
            self._lines.append(f"not.b64 {wide}, {wide};")
        return wide

    def _sum(self, same: str) -> str:
        """A register with the sum of the value over a group of lanes, modulo 2 to the 64. same: the group's mask.

        ``redux`` adds 32 bits, so the value is added up in parts whose sums over 32 lanes fit into 32 bits.
        """
        take, lines = self._take, self._lines
        name, bits = self._given()
        total, part = take("b64"), take("b32")
        for shift in range(0, bits, _ADDED_BITS):
            if bits == 32:
                lines.append(f"bfe.u32 {part}, {name}, {shift}, {_ADDED_BITS};")
            else:
                shifted = take("b64")
                lines += [
                    f"shr.u64 {shifted}, {name}, {shift};",
                    f"cvt.u32.u64 {part}, {shifted};",
                    f"and.b32 {part}, {part}, {(1 << _ADDED_BITS) - 1};",
                ]
            lines.append(f"redux.sync.add.u32 {part}, {part}, {same};")
            if not shift:
                lines.append(f"cvt.u64.u32 {total}, {part};")
                continue
            wide = take("b64")
            lines += [
                f"cvt.u64.u32 {wide}, {part};",
                f"shl.b64 {wide}, {wide}, {shift};",
                f"add.u64 {total}, {total}, {wide};",
            ]
        return total

    def _greatest(self, same: str, *, inverted: bool) -> str:
        """A register with the greatest value of a group of lanes; inverted: with the inverse of the least one, which is
        the greatest inverse. same: the group's mask."""
        take, lines = self._take, self._lines
        given, bits = self._given()
        if bits == 32:
            best, wide = take("b32"), take("b64")
            lines += [
                f"redux.sync.{'min' if inverted else 'max'}.u32 {best}, {given}, {same};",
                f"cvt.u64.u32 {wide}, {best};",
            ]
            if inverted:
                lines.append(f"not.b64 {wide}, {wide};")
            return wide
        name = self._wide(inverted=inverted)
        low, high, upper, lower, whole = take("b32"), take("b32"), take("b32"), take("b32"), take("b64")
        is_upper = take("pred")
        # The greatest upper half, then the greatest lower half of the lanes with that upper half.
        lines += [
            f"mov.b64 {{{low}, {high}}}, {name};",
            f"redux.sync.max.u32 {upper}, {high}, {same};",
            f"setp.eq.u32 {is_upper}, {high}, {upper};",
            f"selp.b32 {low}, {low}, 0, {is_upper};",
            f"redux.sync.max.u32 {lower}, {low}, {same};",
            f"mov.b64 {whole}, {{{lower}, {upper}}};",
        ]
        return whole

    def _given(self) -> tuple[str, int]:
        if self._value is None:
            raise ValueError("a map without values keeps nothing of them")
        return self._value
