"""What single bits of NVIDIA's machine instructions mean, found by changing them and asking ``nvdisasm``.

``bench.sass_tables`` says how, and writes it down.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.nvdisasm_reading import Reading, Words, parse, roles, texts, with_bits, zero_numbers

BITS = range(12, 105)
"""All but the opcode, the control fields and what is above them."""
GUARD = range(12, 16)
SAMPLES = 12
"""Instructions of each opcode, as different as the corpus has them, whose bits are flipped."""
PAIR_SAMPLES = 3
VALUES = 1024
SHAPES = 512
CONTROL_BITS = ((1 << 23) - 1) << 41
"""Bits 105 to 127, in the high half."""
_NUMBERS = {("R", 16): 96, ("R", 24): 8, ("R", 32): 24, ("R", 40): 232, ("R", 64): 40,
            ("UR", 16): 32, ("UR", 24): 8, ("UR", 32): 24, ("UR", 40): 16, ("UR", 48): 48, ("UR", 64): 40,
            ("P", 64): 0, ("P", 66): 5, ("P", 68): 0, ("P", 69): 6, ("P", 77): 1, ("P", 81): 2, ("P", 84): 3,
            ("P", 87): 4, ("UP", 24): 5, ("UP", 64): 0, ("UP", 68): 0, ("UP", 77): 1, ("UP", 81): 2, ("UP", 84): 3,
            ("UP", 87): 4, ("B", 16): 1, ("B", 24): 2}  # fmt: skip
"""The number that a register field gets, by kind and position, so that no two fields share a register."""
_FIELDS = {*_NUMBERS, ("P", 12), ("UP", 12)}
_LEAVES = {0x343, 0x344, 0x348, 0x547, 0x941, 0x942, 0x943, 0x944, 0x945, 0x947, 0x948, 0x949, 0x94A, 0x94B, 0x94C,
           0x94D, 0x950, 0x957, 0x958, 0x959, 0x35C, 0x95C}  # fmt: skip
"""Opcodes that branch or end: ``nvdisasm -plr`` follows them, so that they are not put among others. Their registers
hold an address: two each, but for WARPSYNC's mask."""
_ONE_REGISTER = {"WARPSYNC"}
_WIDTHS = (".64", ".U32", ".U64", ".F32x2")
"""What follows a register's number in the text and says how many registers are read."""
_ADDRESS = re.compile(r"(?<![\w\[])(-?0x[0-9a-f]+)$")
_INVALID = re.compile(r"INVALID|\?\?\?")
_RELATIVE = {"BRA", "BSSY", "CALL", "WARPSYNC"}
"""Instructions that name an address. That of BRX is one of a table, and is not known here."""


@dataclass
class Learned:
    """What is known of an opcode (bits 0 to 11).

    votes: (kind, position) of what may be a field → the bits that spoke for it. fields: (kind, position) → width in
    bits, the guard's left out. inverted: those that hold 7 less the number. followed: those after whose register the
    text names the next one as well. groups: bits of the modifiers, each with its values → fragments of the name; the
    last, without bits, is what every name has. ranks: (group, fragment) in the order of the name. names: full names by
    the values of all groups, of those that were asked for; misnamed: only these are right, as fragments do not make
    them. shape_groups: those on which operands, their sizes and bytes depend. shapes: their values → (operands, bytes).
    target: as stored.
    """

    opcode: int
    samples: Words
    readings: list[Reading]
    seen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    votes: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    fields: dict[tuple[str, int], int] = field(default_factory=dict)
    guard: str = "P"
    key: tuple[int, ...] = ()
    groups: list[tuple[tuple[int, ...], dict[int, tuple[str, ...]]]] = field(default_factory=list)
    inverted: set[tuple[str, int]] = field(default_factory=set)
    followed: list[tuple[str, int]] = field(default_factory=list)
    base: str = ""
    ranks: list[tuple[int, str]] = field(default_factory=list)
    names: dict[tuple[int, ...], str] = field(default_factory=dict)
    misnamed: bool = False
    fixed: tuple[int, int] = (0, 0)
    shape_groups: tuple[int, ...] = ()
    shapes: dict[tuple[int, ...], Any] = field(default_factory=dict)
    target: list[list[int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def value(word: Sequence[int] | Words, bits: Iterable[int]) -> int:
    """The number in these bits of a word, the first the lowest."""
    low, high = int(word[0]), int(word[1])
    both = low | high << 64
    return sum((both >> bit & 1) << index for index, bit in enumerate(bits))


def set_value(word: Words, bits: Iterable[int], number: int) -> None:
    """Put a number into these bits of a word."""
    for index, bit in enumerate(bits):
        half, mask = bit // 64, np.uint64(1 << bit % 64)
        word[half] = word[half] | mask if number >> index & 1 else word[half] & ~mask


def choose_samples(words: Words, generator: np.random.Generator) -> Words:
    """A few instructions of one opcode, with as many different bits above the operands as there are."""
    _, first = np.unique(words[:, 1] & np.uint64((1 << 41) - 1) & ~np.uint64(0xFF), return_index=True)
    order = generator.permutation(first)
    chosen: list[int] = []
    known: set[tuple[int, int]] = set()
    # First those that show a bit with a value that none before it had.
    for index in order:
        high = int(words[index, 1])
        shown = {(bit, high >> bit & 1) for bit in range(8, 41)}
        if not shown <= known and len(chosen) < SAMPLES:
            chosen.append(int(index))
            known |= shown
    for index in order:
        if len(chosen) >= min(SAMPLES, len(order)):
            break
        if index not in chosen:
            chosen.append(int(index))
    return words[chosen]


def compare(before: Reading, after: Reading | None, zeros: Mapping[str, int]) -> tuple[str, Any]:
    """What a flipped bit did: ``illegal``, ``name``, ``shape``, ``same``, ``other``, ``suffix``, or ``field`` with its
    kind and the bit's weight. zeros: as ``zero_numbers`` returns them."""
    if after is None:
        return "illegal", None
    if before.fragments != after.fragments:
        return "name", None
    old, new = before.registers, after.registers
    if old == new:
        if before == after:
            return "same", None
        widths = [[one for one in _WIDTHS if f"R#{one}" in reading.rest] for reading in (before, after)]
        return ("suffix" if widths[0] != widths[1] else "other"), None
    if len(old) == len(new):
        changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
        if changed and (len(changed) == 1 or _named_twice(changed)) and changed[0][0][0] == changed[0][1][0]:
            return "field", (changed[0][0][0], changed[0][0][1] ^ changed[0][1][1])
        return "shape", None
    longer, shorter = (old, new) if len(old) > len(new) else (new, old)
    if len(longer) == len(shorter) + 1:
        for index, (kind, number) in enumerate(longer):
            if longer[:index] + longer[index + 1 :] == shorter and kind in zeros:
                return "field", (kind, number ^ zeros[kind])
    return "shape", None


def _named_twice(changed: list[tuple[tuple[str, int], tuple[str, int]]]) -> bool:
    """Whether two registers are named by one number: the same one, or the other is the one after it."""
    if len(changed) != 2:
        return False
    (first, new_first), (second, new_second) = changed
    distance = second[1] - first[1]
    kinds = {register[0] for pair in changed for register in pair}
    return len(kinds) == 1 and distance in {0, 1} and new_second[1] - new_first[1] == distance


def ask(words: Words, arch: str) -> list[Reading | None]:
    """Readings of words; None for what is no instruction, or has a modifier that nvdisasm calls invalid."""
    zeros = zero_numbers(arch)
    return [None if text is None or _INVALID.search(text) else parse(text, zeros) for text in texts(words, arch)]


def flip(table: list[Learned], arch: str) -> None:
    """Flip each bit of each sample, and note what it is. Where that gives another form, flip that one's bits too: it
    may have operands that the samples lack."""
    for one in table:
        one.base = one.readings[0].fragments[0]
    more = _flip([(one, one.samples, one.readings) for one in table], arch)
    _flip([(one, np.array([word for word, _ in others], np.uint64), [reading for _, reading in others])
           for one, others in more if others], arch)  # fmt: skip
    for one in table:
        # A field shows by two of its bits at least, or what looked like one was another form.
        for place in [place for place, weights in one.votes.items() if len(weights) < 2 or place not in _FIELDS]:
            if len(one.votes[place]) > 1:
                one.problems.append(f"a field {place} that no instruction had before")
            for index in one.votes.pop(place):
                one.seen[place[1] + index].add("shape")
        one.fields = {place: max(weights) + 1 for place, weights in one.votes.items()}
        guards = [kind for (kind, at) in one.fields if at == 12]
        one.guard = guards[0] if guards else ""
        one.fields = {(kind, at): width for (kind, at), width in one.fields.items() if at not in GUARD}


def _flip(
    jobs: list[tuple[Learned, Words, list[Reading]]], arch: str
) -> list[tuple[Learned, list[tuple[Words, Reading]]]]:
    """``flip`` of these words; returns by opcode words of forms with other operands."""
    words = np.concatenate([with_bits(samples, BITS).reshape(-1, 2) for _, samples, _ in jobs])
    found = iter(zip(words, ask(words, arch), strict=True))
    zeros = zero_numbers(arch)
    more = []
    for one, _, readings in jobs:
        others: dict[int, tuple[Words, Reading]] = {}
        for reading in readings:
            for bit in BITS:
                word, after = next(found)
                what, change = compare(reading, after, zeros)
                if what == "field":
                    kind, weight = change
                    if weight == 0 or weight & (weight - 1):
                        what = "shape"
                    else:
                        place = (kind, bit - weight.bit_length() + 1)
                        one.votes[place].add(weight.bit_length() - 1)
                if what in {"shape", "name", "suffix"} and after is not None:
                    kinds = [[kind for kind, _ in one_reading.registers] for one_reading in (reading, after)]
                    if what != "name" or kinds[0] != kinds[1] or len(others) < 4:
                        others[bit] = (word, after)
                one.seen[bit].add(what)
        more.append((one, list(others.values())))
    return more


def find_key(one: Learned, words: Words) -> None:
    """The bits that say which form it is: those that change the name or the operands, and those that vary in the
    corpus though none may change alone. All other bits that were never seen to be free must stay as they are."""
    inside = {at + index for (_, at), width in one.fields.items() for index in range(width)}
    low = np.bitwise_or.reduce(words[:, 0] ^ words[0, 0])
    high = np.bitwise_or.reduce(words[:, 1] ^ words[0, 1])
    varies = {bit for bit in BITS if (int(low) | int(high) << 64) >> bit & 1}
    key: list[int] = []
    fixed: list[int] = []
    for bit in BITS:
        if bit in GUARD:
            continue
        seen = one.seen[bit]
        if seen & {"name", "shape", "suffix"}:
            key.append(bit)
        elif seen <= {"illegal"} and bit not in inside:
            (key if bit in varies else fixed).append(bit)
    clash = inside & set(key)
    if clash:
        one.problems.append(f"bits {sorted(clash)} are of a register and of the form")
    one.key = tuple(key)
    mask = sum(1 << bit for bit in fixed)
    one.fixed = (mask, (int(words[0, 0]) | int(words[0, 1]) << 64) & mask)


def group(table: list[Learned], arch: str) -> None:
    """Which bits of the key belong together: not two of which both flipped do to the name what each does alone."""
    wanted, jobs = [], []
    for one in table:
        for sample in one.samples[:PAIR_SAMPLES]:
            pairs = list(itertools.combinations(one.key, 2))
            sets = [(bit,) for bit in one.key] + pairs
            block = np.repeat(sample[None, :], len(sets), axis=0)
            for row, bits in zip(block, sets, strict=True):
                for bit in bits:
                    row[bit // 64] ^= np.uint64(1 << bit % 64)
            wanted.append(block)
            jobs.append((one, sample, sets))
    found = iter(ask(np.concatenate(wanted), arch))
    together: dict[int, set[tuple[int, int]]] = defaultdict(set)
    apart: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for one, sample, sets in jobs:
        index = next(i for i, other in enumerate(one.samples) if (other == sample).all())
        plain = Counter(one.readings[index].fragments)
        results: dict[tuple[int, ...], Counter[str] | None] = {}
        for bits in sets:
            reading = next(found)
            results[bits] = None if reading is None else Counter(reading.fragments)
        for first, second in (bits for bits in sets if len(bits) == 2):
            a, b, both = results[(first,)], results[(second,)], results[(first, second)]
            if a is None and b is None:
                if both is not None:
                    together[one.opcode].add((first, second))
                continue
            if a is None or b is None:
                if both is not None:
                    together[one.opcode].add((first, second))
                continue
            expected = Counter(plain)
            for change in (a, b):
                expected.update(change - plain)
                expected.subtract(plain - change)
            if both is None or +expected != both or any(count < 0 for count in expected.values()):
                together[one.opcode].add((first, second))
            else:
                apart[one.opcode].add((first, second))
    for one in table:
        parent = {bit: bit for bit in one.key}

        def root(bit: int, parent: dict[int, int] = parent) -> int:
            while parent[bit] != bit:
                bit = parent[bit]
            return bit

        for first, second in sorted(together[one.opcode]):
            parent[root(second)] = root(first)
        members: dict[int, list[int]] = defaultdict(list)
        for bit in one.key:
            members[root(bit)].append(bit)
        one.groups = [(tuple(bits), {}) for bits in members.values()]


def name_values(table: list[Learned], corpus: dict[int, Words], arch: str) -> None:
    """What each value of each group puts into the name. A name is its base and the groups' fragments in one order."""
    wanted, jobs = [], []
    for one in table:
        for bits, _ in one.groups:
            numbers: Iterable[int]
            if 1 << len(bits) <= VALUES:
                numbers = range(1 << len(bits))
            else:
                numbers = sorted({value(word, bits) for word in corpus[one.opcode]})[:VALUES]
            block = np.repeat(one.samples[:, None, :], len(list(numbers)), axis=1)
            for row in block:
                for word, number in zip(row, numbers, strict=True):
                    set_value(word, bits, number)
            wanted.append(block.reshape(-1, 2))
            jobs.append((one, bits, list(numbers)))
    found = iter(ask(np.concatenate(wanted), arch))
    named: dict[int, list[tuple[tuple[int, ...], int, int, tuple[str, ...]]]] = defaultdict(list)
    for one, bits, numbers in jobs:
        for sample in range(len(one.samples)):
            for number in numbers:
                reading = next(found)
                if reading is not None:
                    named[one.opcode].append((bits, sample, number, reading.fragments))
    for one in table:
        _name(one, named[one.opcode])


def _name(one: Learned, named: list[tuple[tuple[int, ...], int, int, tuple[str, ...]]]) -> None:
    """Fill an opcode's groups with fragments, and find their order."""
    for bits, values in one.groups:
        for sample in range(len(one.samples)):
            rows = {number: Counter(fragments[1:]) for group_bits, index, number, fragments in named
                    if group_bits == bits and index == sample}  # fmt: skip
            if not rows:
                continue
            # What all values of the group have is not its own, unless a sample with more values says so.
            shared = Counter(next(iter(rows.values())))
            for names in rows.values():
                shared &= names
            for number, names in rows.items():
                fragments = tuple((names - shared).elements())
                if len(fragments) >= len(values.get(number, ())):
                    values[number] = fragments
    fixed: Counter[str] | None = None
    for sample, reading in zip(one.samples, one.readings, strict=True):
        own = Counter(reading.fragments[1:])
        for bits, values in one.groups:
            own -= Counter(values.get(value(sample, bits), ()))
        fixed = own if fixed is None else fixed & own
    constant = tuple((fixed or Counter()).elements())
    one.groups.append(((), {0: constant}))
    rows_of_names = [(one.samples[index], bits, number, fragments) for bits, index, number, fragments in named]
    one.ranks = _ranks(one, rows_of_names)
    wrong = []
    for sample, bits, number, fragments in rows_of_names:
        word = sample.copy()
        set_value(word, bits, number)
        one.names[_form(one, word)] = ".".join(fragments)
        if name_of(one, word) != fragments:
            wrong.append(fragments)
    one.misnamed = bool(wrong)


def _ranks(one: Learned, rows: list[tuple[Words, tuple[int, ...], int, tuple[str, ...]]]) -> list[tuple[int, str]]:
    """The order of (group, fragment), from names in which no fragment occurs twice."""
    after: dict[tuple[int, str], set[tuple[int, str]]] = {
        (index, name): set()
        for index, (_, values) in enumerate(one.groups)
        for names in values.values()
        for name in names
    }
    for sample, bits, number, fragments in rows:
        if len(set(fragments[1:])) != len(fragments) - 1:
            continue
        word = sample.copy()
        set_value(word, bits, number)
        owner: dict[str, list[int]] = defaultdict(list)
        for index, (own, values) in enumerate(one.groups):
            for name in values.get(value(word, own), ()):
                owner[name].append(index)
        if any(len(indices) > 1 for indices in owner.values()) or set(owner) != set(fragments[1:]):
            continue
        line = [(owner[name][0], name) for name in fragments[1:]]
        for index, first in enumerate(line):
            after[first].update(line[index + 1 :])
    ranked: list[tuple[int, str]] = []
    left = dict(after)
    while left:
        # The first that is after none of the others; with a circle, the one with the most behind it.
        free = [item for item in left if not any(item in left[other] for other in left if other != item)]
        chosen = min(free) if free else max(left, key=lambda item: len(left[item]))
        ranked.append(chosen)
        del left[chosen]
    return ranked


def name_of(one: Learned, word: Words) -> tuple[str, ...]:
    """An instruction's name by the groups."""
    found = [(index, name) for index, (bits, values) in enumerate(one.groups)
             for name in values.get(value(word, bits), ())]  # fmt: skip
    return (one.base, *(name for _, name in sorted(found, key=one.ranks.index)))


def find_shapes(table: list[Learned], corpus: dict[int, Words], arch: str, processes: int = 2) -> None:
    """Operands by form: each register field gets a number of its own, and nvdisasm says which are there, how many
    registers each takes, and whether they are defined or used."""
    for one in table:
        one.shape_groups = tuple(range(len(one.groups)))
    known: dict[int, dict[tuple[int, ...], Any]] = defaultdict(dict)
    wanted = {one.opcode: _first_forms(one, corpus[one.opcode]) for one in table}
    for stage in range(2):
        _ask_shapes(table, wanted, known, arch, processes)
        for one in table:
            _narrow(one, known[one.opcode])
        if stage == 0:
            wanted = {one.opcode: _more_forms(one, known[one.opcode]) for one in table}
    for one in table:
        chosen = one.shape_groups
        for form, shape in known[one.opcode].items():
            if shape is not None:
                one.shapes[tuple(form[index] for index in chosen)] = shape


def _form(one: Learned, word: Words) -> tuple[int, ...]:
    """The values of all groups of a word."""
    return tuple(value(word, bits) for bits, _ in one.groups)


def _first_forms(one: Learned, words: Words) -> dict[tuple[int, ...], Words]:
    """Forms of the corpus, and those that differ from a sample's in one group, each with a word."""
    mask = sum(1 << bit for bit in one.key)
    masked = words & np.array([mask & (1 << 64) - 1, mask >> 64], np.uint64)
    order = np.lexsort((masked[:, 0], masked[:, 1]))
    first = np.ones(len(order), bool)
    first[1:] = (masked[order][1:] != masked[order][:-1]).any(axis=1)
    found = {_form(one, word): word for word in words[order[first]][: 4 * SHAPES]}
    for sample in one.samples:
        for bits, values in one.groups:
            for number in values:
                word = sample.copy()
                set_value(word, bits, number)
                if len(found) < 8 * SHAPES:
                    found.setdefault(_form(one, word), word)
    return found


def _more_forms(one: Learned, known: dict[tuple[int, ...], Any]) -> dict[tuple[int, ...], Words]:
    """All combinations of the groups that matter, the others as in the samples."""
    lists = [sorted(one.groups[index][1]) for index in one.shape_groups]
    if int(np.prod([len(numbers) for numbers in lists], dtype=np.int64)) > SHAPES:
        return {}
    found: dict[tuple[int, ...], Words] = {}
    have = {tuple(form[index] for index in one.shape_groups) for form, shape in known.items() if shape is not None}
    for numbers in itertools.product(*lists):
        if numbers in have:
            continue
        for sample in one.samples[:4]:
            word = sample.copy()
            for index, number in zip(one.shape_groups, numbers, strict=True):
                set_value(word, one.groups[index][0], number)
            if _form(one, word) not in known:
                found[_form(one, word)] = word
    return found


def _ask_shapes(
    table: list[Learned], wanted: dict[int, dict[tuple[int, ...], Words]],
    known: dict[int, dict[tuple[int, ...], Any]], arch: str, processes: int,
) -> None:  # fmt: skip
    """Fill ``known`` with the shapes of the forms that are wanted; None for a form that does not exist."""
    jobs = []
    for one in table:
        for form, word in wanted[one.opcode].items():
            jobs.append((one, form, word, _mark(one, word)))
    if not jobs:
        return
    words = np.array([marked for _, _, _, marked in jobs], np.uint64)
    readings = ask(words, arch)
    # A form may not allow a number in a field that it does not have: then that field stays as it was.
    refused = [index for index, reading in enumerate(readings) if reading is None]
    plain = ask(np.array([jobs[index][2] for index in refused], np.uint64).reshape(-1, 2), arch)
    again = [(index, left_out) for index, reading in zip(refused, plain, strict=True) if reading is not None
             for left_out in jobs[index][0].fields]  # fmt: skip
    if again:
        trials = np.array([_mark(jobs[index][0], jobs[index][2], left_out) for index, left_out in again], np.uint64)
        for (index, _), word, reading in zip(again, trials, ask(trials, arch), strict=True):
            if reading is not None and readings[index] is None:
                readings[index] = reading
                words[index] = word
    straight = [index for index, (one, *_) in enumerate(jobs)
                if readings[index] is not None and one.opcode not in _LEAVES]  # fmt: skip
    found = roles(words[straight], arch, processes) if straight else []
    marks = dict(zip(straight, found, strict=True))
    for index, (one, form, _, _) in enumerate(jobs):
        reading = readings[index]
        if reading is None:
            known[one.opcode].setdefault(form, None)
            continue
        for (_, values), number in zip(one.groups, form, strict=True):
            if number not in values:
                # Legal only together with values of other groups that no sample has: names in full say when.
                values[number] = ()
                one.misnamed = True
        one.names[form] = ".".join(reading.fragments)
        one.misnamed |= one.names[form] != ".".join(name_of(one, words[index]))
        if one.opcode in _LEAVES:
            known[one.opcode][form] = _shape_of_branch(one, reading)
        else:
            roles_of = marks[index]
            shape = None if roles_of is None else _shape(one, reading, roles_of)
            if isinstance(shape, str):
                one.problems.append(f"{'.'.join(reading.fragments)} {reading.operands}: {shape}")
                shape = None
            known[one.opcode][form] = shape


def _mark(one: Learned, word: Words, left_out: tuple[str, int] | None = None) -> Words:
    """The word with a number of its own in each register field but one, and no guard."""
    marked = word.copy()
    set_value(marked, GUARD, 7)
    for (kind, at), width in one.fields.items():
        if (kind, at) != left_out:
            set_value(marked, range(at, at + width), _number(one, (kind, at)))
    return marked


def _number(one: Learned, place: tuple[str, int]) -> int:
    """The number that a field gets. Sums of asynchronous products may be so long that no two are beside each other: the
    old and the new one are the same registers."""
    return _NUMBERS["R", 16] if one.base.endswith("GMMA") and place == ("R", 64) else _NUMBERS[place]


def _shape(one: Learned, reading: Reading, marks: dict[tuple[str, int], str]) -> Any:
    """The operands of a marked instruction: (index of the field, registers, role), in the order of the text; a message
    where marks are left over."""
    fields = sorted(one.fields)
    places = {(place[0], _number(one, place)): index for index, place in enumerate(fields)}
    numbers = Counter((place[0], _number(one, place)) for place in fields)
    left = dict(marks)
    found = []
    for position, register in enumerate(reading.registers):
        kind, first = register
        place = places.get(register)
        if place is None and kind in {"P", "UP"} and (kind, 7 - first) in places:
            place = places[kind, 7 - first]
            one.inverted.add(fields[place])
        if place is None and kind == "UR" and (kind, first - 1) in places:
            before = fields[places[kind, first - 1]]
            if before not in one.followed:
                one.followed.append(before)
            place = len(fields) + one.followed.index(before)
        if place is None:
            return f"{kind}{first} is of no field"
        if kind == "B":
            found.append((place, 1, "b"))
            continue
        role = left.get(register)
        if one.base.endswith("GMMA") and register == ("R", _NUMBERS["R", 16]):
            if role != "x":
                if position == 0 or found[0][0] != fields.index(("R", 16)):
                    return f"{kind}{first} is {role}"
                found.append((fields.index(("R", 64)), found[0][1], "v"))
                continue
            count = sum(key[0] == "R" and mark == "x" for key, mark in left.items())
            left = {key: mark for key, mark in left.items() if not (key[0] == "R" and mark == "x")}
            found.append((fields.index(("R", 16)), count, "^"))
            continue
        if role is None and register in marks and numbers[register] < 2:
            # The text names a register of an operand before it once more.
            found.append((place, 1, marks[register]))
            continue
        if role is None:
            return f"{kind}{first} is neither defined nor used"
        count = _take(left, register, role)
        found.append((place, count, role))
    # Up to sm_89 the text leaves out the uniform registers with the descriptor of a memory access.
    for register, role in sorted(left.items()):
        if register[0] == "UR" and role == "v" and register in places and register in left:
            found.append((places[register], _take(left, register, role), "h"))
    if left:
        return f"{sorted(left)} are not in the text"
    return tuple(found), access_bytes(reading.fragments)


def _take(left: dict[tuple[str, int], str], register: tuple[str, int], role: str) -> int:
    """Take a register and those after it with the same role out of the marks. Returns how many. Predicates stand alone;
    general and uniform registers may be the first of several."""
    (kind, first), count = register, 0
    while left.get((kind, first + count)) == role and not (count and kind in {"P", "UP"}):
        del left[kind, first + count]
        count += 1
    return count


def _shape_of_branch(one: Learned, reading: Reading) -> Any:
    """The operands of a branch: predicates and barriers are used, and a register is half of an address."""
    places = {(kind, _NUMBERS[kind, at]): index for index, (kind, at) in enumerate(sorted(one.fields))}
    found = []
    for register in reading.registers:
        if register not in places:
            return None
        kind = register[0]
        wide = kind in {"R", "UR"} and reading.fragments[0] not in _ONE_REGISTER
        found.append((places[register], 2 if wide else 1, "b" if kind == "B" else "v"))
    return tuple(found), 0


_MEMORY = {"LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "ATOM", "ATOMG", "ATOMS", "RED", "REDG", "LDC", "ULDC",
           "LDGSTS"}  # fmt: skip
_SIZES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "32": 4, "64": 8, "128": 16, "256": 32, "S64": 8, "F64": 8, "U64": 8}


def access_bytes(fragments: tuple[str, ...]) -> int:
    """Bytes that a lane reads or writes, from the name; 0 for what is no such access."""
    if fragments[0] not in _MEMORY:
        return 0
    sizes = [_SIZES[name] for name in fragments[1:] if name in _SIZES]
    return sizes[-1] if sizes else 4


def _narrow(one: Learned, known: dict[tuple[int, ...], Any]) -> None:
    """Leave out groups on which no shape depends."""
    rows = [(form, shape) for form, shape in known.items() if shape is not None]
    chosen = list(range(len(one.groups)))
    for index in sorted(chosen, key=lambda index: -len(one.groups[index][0])):
        trial = [other for other in chosen if other != index]
        seen: dict[tuple[int, ...], Any] = {}
        if all(seen.setdefault(tuple(form[i] for i in trial), shape) == shape for form, shape in rows):
            chosen = trial
    one.shape_groups = tuple(chosen)


def find_targets(table: list[Learned], arch: str) -> None:
    """Which bits of a branch hold its target, and each bit's weight in bytes."""
    jobs = []
    for one in table:
        bits = [bit for bit in BITS if bit not in GUARD and bit not in one.key and "other" in one.seen[bit]]
        named = [index for index, reading in enumerate(one.readings) if _target(reading) is not None]
        if one.opcode in _LEAVES and named:
            jobs.append((one, one.samples[named[0]], bits))
    for one, sample, bits in jobs:
        # Alone, so that an instruction's number in the file is known, with which its target is printed.
        words = np.concatenate([sample[None, :], with_bits(sample[None, :], bits)[0]])
        legal = [index for index, reading in enumerate(ask(words, arch)) if reading is not None]
        offsets = {}
        for place, (index, reading) in enumerate(zip(legal, ask(words[legal], arch), strict=True)):
            target = None if reading is None else _target(reading)
            if target is not None:
                offsets[index] = (target - place * 16 - 16 + (1 << 63)) % (1 << 64) - (1 << 63)
        if 0 not in offsets:
            one.problems.append("a target that is not always printed")
            continue
        weights = {bit: abs(offsets[index + 1] - offsets[0]) for index, bit in enumerate(bits) if index + 1 in offsets}
        runs: list[list[int]] = []
        for bit, weight in sorted((bit, weight) for bit, weight in weights.items() if weight):
            power = weight.bit_length() - 1
            if weight != 1 << power:
                one.problems.append(f"bit {bit} moves the target by {weight:#x}")
            elif runs and runs[-1][0] + runs[-1][1] == bit and runs[-1][2] + runs[-1][1] == power:
                runs[-1][1] += 1
            else:
                runs.append([bit, 1, power])
        if not any("moves the target" in problem for problem in one.problems):
            one.target = sorted(runs, key=lambda run: run[2])


def _target(reading: Reading) -> int | None:
    """The address at the end of an instruction's operands."""
    match = _ADDRESS.search(reading.operands)
    name = reading.fragments
    # A whole address is filled in by the linker, and WARPSYNC has a mask of lanes unless it is collective.
    whole = "ABS" in name or (name[0] == "WARPSYNC" and "COLLECTIVE" not in name)
    return None if match is None or name[0] not in _RELATIVE or whole else int(match[1], 16)
