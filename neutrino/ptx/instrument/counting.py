"""Code that counts: how often threads came to a cell, and what was saved with a key.

The lanes of a warp together hold 32 sums in one register: lane n has the warp's sum of cell n, or of site n. Where a
lane ends, it adds what it holds to memory. Atomics are left to lanes that are together without the one that holds. Each
site has a copy of this code, so that it is short: a kernel with many sites waits for its instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neutrino.ir.memory import KeyTable
from neutrino.maps.regions import COPIES_MOST
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.isa.scalars import WARP_LANES

MOST_GROUPS = 2
"""Of 32 cells, or sites, that lanes hold."""
FIRST_HELD = 1
"""The number, among a map's kept registers, of the first one that lanes hold; the one before has an address."""
# Of tables of keys. A word is 8 bytes; the multiplier is 2 to the 64 divided by the golden ratio, so that keys at any
# stride spread over the table; and the sum of so many bits over 32 lanes fits in 32 bits.
_WORD = 8
_MULTIPLIER = 0x9E3779B97F4A7C15
_ADDED_BITS = 27


@dataclass(frozen=True)
class SiteCode:
    """Writes the code of one map whose keys are sites: of a site's entry, in a table as of ``KeyCode``.

    keep: gives a register that is kept to the thread's end, by its number, its bits and its first value: lanes hold in
    them what is saved at the first 64 sites. base: a register with the address of the entry of site 0. table: its form,
    whose values have at most 32 bits. take: gives a new register of a type (``Take``).
    """

    keep: Callable[[int, int, int], str]
    base: str
    table: KeyTable
    take: Take

    def save(self, site: int, value: str, lines: list[str], when: str | None, label: str) -> None:
        """Append the code that adds a save to a site's entry. It branches, but only forward, to labels of its own, and
        may not stand between a product and its sum.

        site: its number. value: a register of 32 bits; "" without one. when: a predicate for the threads that save;
        None for all. label: begins the labels.
        """
        take, is_held = self.take, site < MOST_GROUPS * WARP_LANES
        here, number, lane = take("b32"), take("b32"), take("b32")
        count, address, apart = take("b64"), take("b64"), take("pred")
        # Labels are local to braces, so that the text can be inserted again elsewhere.
        lines += ["{", f"activemask.b32 {here};"]
        saving = here
        if when:
            saving = take("b32")
            lines.append(f"vote.sync.ballot.b32 {saving}, {when}, {here};")
        value, totals = self._extremes(here, value, lines, when)
        # Clocks are the same in all lanes: if the values are, their sum is a product.
        product = is_held and {"sum", "min", "max"} == set(self.table.keep)
        if "sum" in self.table.keep and not product:
            totals["sum"] = self._sum(here, value, lines)
        lines.append(f"popc.b32 {number}, {saving};")
        if is_held:
            group, holder = divmod(site, WARP_LANES)
            registers = self._registers(group)
            lines += [f"and.b32 {lane}, {here}, {1 << holder};", f"setp.eq.u32 {apart}, {lane}, 0;"]
            if product:
                lines.append(f"setp.ne.or.u32 {apart}, {totals['min']}, {totals['max']}, {apart};")
            lines += [
                f"@{apart} bra {label}_memory;",
                f"mov.u32 {lane}, %laneid;",
                f"setp.eq.u32 {apart}, {lane}, {holder};",
                f"cvt.u64.u32 {count}, {number};",
                f"@{apart} add.u64 {registers['count']}, {registers['count']}, {count};",
            ]
            for name in self.table.keep:
                kept, kind = registers[name], "add.u64" if name == "sum" else f"{name}.u32"
                if name == "sum" and product:
                    lines.append(f"@{apart} mad.wide.u32 {kept}, {totals['min']}, {number}, {kept};")
                else:
                    lines.append(f"@{apart} {kind} {kept}, {kept}, {totals[name]};")
            lines += [f"bra {label}_end;", f"{label}_memory:"]
        if product:
            totals["sum"] = self._sum(here, value, lines)
        lines += [
            f"mov.u32 {lane}, %lanemask_lt;",
            f"and.b32 {lane}, {lane}, {here};",
            f"setp.ne.u32 {apart}, {lane}, 0;",
            f"setp.eq.or.u32 {apart}, {number}, 0, {apart};",
            f"@{apart} bra {label}_added;",
            f"cvt.u64.u32 {count}, {number};",
            # Zero is added: for an address that is the same in all lanes ptxas would add up once more, in many
            # instructions.
            f"mad.wide.u32 {address}, {lane}, 1, {self.base};",
            *self._add(address, site, count, totals),
            # Together again, as the program had them.
            f"{label}_added:",
            f"bar.warp.sync {here};",
        ]
        if is_held:
            lines.append(f"{label}_end:")
        lines.append("}")

    def end(self, group: int, lines: list[str], label: str) -> None:
        """Append the code where a thread ends: what it holds of a group of 32 sites goes to memory. label: for one."""
        take = self.take
        lane, address, holds = take("b32"), take("b64"), take("pred")
        registers = self._registers(group)
        lines += [
            f"mov.u32 {lane}, %laneid;",
            f"mad.wide.u32 {address}, {lane}, {self._entry_size}, {self.base};",
            f"setp.eq.u64 {holds}, {registers['count']}, 0;",
            "{",
            f"@{holds} bra {label};",
            *self._add(address, group * WARP_LANES, registers["count"], registers, reads=True),
            f"{label}:",
            "}",
        ]

    @property
    def _entry_size(self) -> int:
        return _WORD * (2 + len(self.table.keep))

    def _registers(self, group: int) -> dict[str, str]:
        """The registers in which lanes hold a group's entries: of 64 bits the count and the sum, of 32 the others."""
        first = FIRST_HELD + 4 * group
        registers = {"count": self.keep(first, 64, 0)}
        for name, number, bits, value in (("sum", 1, 64, 0), ("min", 2, 32, 0xFFFFFFFF), ("max", 3, 32, 0)):
            if name in self.table.keep:
                registers[name] = self.keep(first + number, bits, value)
        return registers

    def _extremes(self, here: str, value: str, lines: list[str], when: str | None) -> tuple[str, dict[str, str]]:
        """A register with the value, which is 0 in lanes that do not save; and by its name, one of 32 bits with the
        least and the greatest over the lanes that are here, of those that save: -1 and 0 if none does."""
        take, keep = self.take, self.table.keep
        totals, least = {}, value
        if when and keep:
            least, given, value = take("b32"), value, take("b32")
            lines += [f"selp.b32 {least}, {given}, -1, {when};", f"selp.b32 {value}, {given}, 0, {when};"]
        for name, source in (("min", least), ("max", value)):
            if name in keep:
                totals[name] = take("b32")
                lines.append(f"redux.sync.{name}.u32 {totals[name]}, {source}, {here};")
        return value, totals

    def _sum(self, here: str, value: str, lines: list[str]) -> str:
        """A register of 64 bits with the sum of a value of 32 bits over the lanes that are here."""
        low, high, total = self.take("b32"), self.take("b32"), self.take("b64")
        # ``redux`` adds 32 bits: halves of the value, whose sums over 32 lanes fit.
        lines += [
            f"and.b32 {low}, {value}, 0xffff;",
            f"shr.u32 {high}, {value}, 16;",
            f"redux.sync.add.u32 {low}, {low}, {here};",
            f"redux.sync.add.u32 {high}, {high}, {here};",
            f"cvt.u64.u32 {total}, {low};",
            f"mad.wide.u32 {total}, {high}, 0x10000, {total};",
        ]
        return total

    def _add(self, base: str, site: int, count: str, totals: Mapping[str, str], *, reads: bool = False) -> list[str]:
        """The code that adds to a site's entry in memory. base: a register with the address of the entry of site 0.
        reads: extremes are compared with those in memory first."""
        lines, reds = [], [("add", count)]
        for name in self.table.keep:
            value = totals[name]
            if name != "sum":
                value = self.take("b64")
                lines.append(f"cvt.u64.u32 {value}, {totals[name]};")
            if name == "min":
                lines.append(f"not.b64 {value}, {value};")
            reds.append(("add" if name == "sum" else "max", value))
        offset = site * self._entry_size + _WORD
        places = [f"[{base}+{offset + _WORD * word}]" for word in range(len(reds))]
        # Most warps raise nothing, and what another one raises meanwhile only gets greater: a load costs less than an
        # atomic.
        extremes = [place for place, (operation, _) in zip(places, reds, strict=True) if operation == "max" and reads]
        found = {place: self.take("b64") for place in extremes}
        lines += [f"ld.relaxed.gpu.global.u64 {register}, {place};" for place, register in found.items()]
        for place, (operation, value) in zip(places, reds, strict=True):
            prefix = ""
            if place in found:
                raises = self.take("pred")
                lines.append(f"setp.gt.u64 {raises}, {value}, {found[place]};")
                prefix = f"@{raises} "
            lines.append(f"{prefix}red.global.{operation}.u64 {place}, {value};")
        return lines


def add_period(base: str, table: KeyTable, copies: int, take: Take, lines: list[str]) -> None:
    """Append the code that makes the address of a table, in base, that of the entry of site 0.

    copies: the most that the table has; from as many multiprocessors on others of an entry's places are taken, too.
    """
    # How many places of an entry are used.
    uses = min(table.places // table.period, COPIES_MOST // copies) if table.period else 1
    if uses < 2:
        return
    use = take("b32")
    lines += [
        f"mov.u32 {use}, %smid;",
        f"bfe.u32 {use}, {use}, {copies.bit_length() - 1}, {uses.bit_length() - 1};",
        f"mad.wide.u32 {base}, {use}, {table.period * _WORD * (2 + len(table.keep))}, {base};",
    ]


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
