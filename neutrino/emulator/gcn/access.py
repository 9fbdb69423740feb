"""Instructions on memory: global, flat, buffers, scratch and LDS."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.access_words import gather, scatter
from neutrino.emulator.gcn.atomics import Atomic, atomic_of, perform
from neutrino.emulator.gcn.compiler import APERTURE_SIZE, PRIVATE_APERTURE, SHARED_APERTURE, Compiler, register
from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.numbering import M0
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Step, Wave

Array = npt.NDArray[Any]
SCRATCH_BASE = 0x6E00_0000_0000
"""Where buffer instructions see scratch."""
_SCRATCH_SIZE = 1 << 40


class Part(NamedTuple):
    """Lanes that access the same memory. lanes: their numbers, or all of them. places: of their first bytes."""

    lanes: Any
    memory: Array
    places: Array


Locate = Callable[[Wave], list[Part]]

_SIZES = {
    "ubyte": (1, False), "u8": (1, False), "sbyte": (1, True), "i8": (1, True), "ushort": (2, False),
    "u16": (2, False), "sshort": (2, True), "i16": (2, True), "short": (2, False), "byte": (1, False), "b8": (1, False),
    "b16": (2, False), "dword": (4, False), "b32": (4, False), "dwordx2": (8, False), "b64": (8, False),
    "dwordx3": (12, False), "b96": (12, False), "dwordx4": (16, False), "b128": (16, False),
}  # fmt: skip
"""Name → bytes, and whether its sign is extended."""
_NOTHING = re.compile(
    r"buffer_(inv|invl2|wbl2|gl[01]_inv|wbinvl1(_vol)?|wbinvl1_sc)|global_(inv|wb|wbinv)|ds_(nop|gws_\w+)"
)


class _Width(NamedTuple):
    """Of a load or a store. half: 0 or 1 if only that half of the register is meant, None if all of it."""

    size: int
    signed: bool
    half: int | None


def _width(name: str) -> _Width | None:
    """Return how many bytes a load or store moves, by the end of its name such as ``dwordx2`` or ``d16_hi_b8``; None
    for an unknown one."""
    half = None
    if "d16" in name:
        half = int("hi" in name)
        name = re.sub(r"_?d16(_hi)?_?", "", name)
    found = _SIZES.get(name)
    return _Width(found[0], found[1], half) if found else None


def compile_access(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes an instruction on memory."""
    name = ins.mnemonic
    if _NOTHING.fullmatch(name):
        return lambda wave: None
    space, _, rest = name.partition("_")
    if space == "ds":
        return _lds(c, ins, rest)
    if "lds" in ins.modifiers or "_lds_" in name:
        return _load_to_lds(c, ins, space, rest)
    counter = "flat" if space == "flat" else "vm"
    atomic = atomic_of(rest) if rest.startswith("atomic_") else None
    if rest.startswith("atomic_"):
        if atomic is None:
            raise c.unknown()
        returns = "glc" in ins.modifiers or "sc0" in ins.modifiers or "RETURN" in ins.modifiers.get("th", "")
        operands = ins.operands[1:] if returns else ins.operands
        if space == "buffer":
            data, address = ins.operands[0], ins.operands[1:]
            locate = _buffer(c, ins, address, atomic.size)
        else:
            data = operands[1]
            locate = _locate(c, ins, space, (operands[0], *operands[2:]), atomic.size)
        into = (data if space == "buffer" else ins.operands[0]) if returns else None
        return _atomic(c, atomic, locate, data, into, counter)
    kind, _, size = rest.partition("_")
    width = _width(size)
    if kind not in ("load", "store") or width is None:
        raise c.unknown()
    if kind == "load" or space == "buffer":
        data, address = ins.operands[0], ins.operands[1:]
    else:
        data, address = ins.operands[1], (ins.operands[0], *ins.operands[2:])
    locate = _buffer(c, ins, address, width.size) if space == "buffer" else _locate(c, ins, space, address, width.size)
    return _load(c, width, locate, data, counter) if kind == "load" else _store(c, width, locate, data, counter)


# ---------------------------------------------------------------- where lanes access memory


def _locate(c: Compiler, ins: Parsed, space: str, address: tuple[str, ...], size: int) -> Locate:
    """Return the function for the memory that the lanes of a global, flat or scratch instruction access."""
    offset = ins.number("offset")
    if space == "scratch":
        return _scratch(c, address, offset, size)
    if space not in ("global", "flat"):
        raise c.unknown()
    base = None
    if len(address) > 1 and address[1] not in ("off", "null"):
        base = c.scalar(address[1], 64)
        # The lanes' part is a signed word on gfx1250 only.
        lanes_part = c.vector(address[0], "u32")
    else:
        lanes_part = c.vector(address[0], "u64")
    shift = np.uint64(offset & (1 << 64) - 1)
    is_flat = space == "flat"

    def locate(wave: Wave) -> list[Part]:
        """Return which bytes of memory the active lanes of a wave access, as parts that each lie in one memory."""
        if base is None:
            addresses = lanes_part(wave) + shift
        else:
            first = np.uint64(base(wave))
            addresses = np.broadcast_to(lanes_part(wave), (wave.lanes,)).astype(np.uint64) + first + shift
        lanes: Any = slice(None) if wave.full else np.flatnonzero(wave.mask)
        addresses = addresses[lanes]
        if is_flat:
            return _flat_parts(wave, lanes, addresses, size)
        memory = wave.memory
        return [Part(lanes, memory.bytes, memory.offsets(addresses, size))]

    return locate


def _flat_parts(wave: Wave, lanes: Any, addresses: Array, size: int) -> list[Part]:
    """Divide the lanes of a flat access by the memory that their addresses lie in: LDS (shared memory), scratch or
    global.

    lanes: their numbers, or a slice for all. addresses: u64, one a lane. size: bytes that each accesses.
    """
    upper = addresses >> np.uint64(32)
    numbers = np.arange(wave.lanes)[lanes]
    parts = []
    for aperture in (SHARED_APERTURE, PRIVATE_APERTURE):
        inside = upper == np.uint64(aperture >> 32)
        if inside.any():
            low = (addresses[inside] & np.uint64(APERTURE_SIZE - 1)).astype(np.int64)
            chosen = numbers[inside]
            if aperture == SHARED_APERTURE:
                parts.append(Part(chosen, wave.group.lds, _in_lds(wave, low, size)))
            else:
                parts.append(_scratch_part(wave, chosen, low, size))
            addresses, numbers, upper = addresses[~inside], numbers[~inside], upper[~inside]
            lanes = numbers
    if addresses.size:
        parts.append(Part(lanes, wave.memory.bytes, wave.memory.offsets(addresses, size)))
    return parts


def _in_lds(wave: Wave, places: Array, size: int) -> Array:
    """Return places in LDS. Raises GcnFaultError outside the work-group's part."""
    if places.size and (int(places.min()) < 0 or int(places.max()) + size > wave.group.lds_size):
        worst = int(places.max()) if int(places.min()) >= 0 else int(places.min())
        raise GcnFaultError("lds", f"an access of {size} bytes at {worst} of {wave.group.lds_size} bytes of LDS")
    return places


def _scratch_part(wave: Wave, lanes: Array, places: Array, size: int) -> Part:
    """Return the part of lanes that access scratch, each its own."""
    limit = wave.scratch.shape[1]
    if places.size and (int(places.min()) < 0 or int(places.max()) + size > limit):
        raise GcnFaultError("scratch", f"an access of {size} bytes at {int(places.max())} of {limit} bytes of scratch")
    return Part(lanes, wave.scratch.reshape(-1), lanes * limit + places)


def _scratch(c: Compiler, address: tuple[str, ...], offset: int, size: int) -> Locate:
    """Return the function for the bytes of scratch (private memory) that the lanes of an instruction access.

    address: the operands, a vector and a scalar register or ``off``. offset: added to them. size: bytes a lane.
    """
    lanes_part = c.vector(address[0], "i32") if address[0] not in ("off", "null") else None
    base = c.scalar(address[1]) if len(address) > 1 and address[1] not in ("off", "null") else None

    def locate(wave: Wave) -> list[Part]:
        """Return which bytes of their scratch the active lanes of a wave access."""
        lanes = np.flatnonzero(wave.mask)
        places = np.full(lanes.size, offset + (base(wave) if base is not None else 0), np.int64)
        if lanes_part is not None:
            places += np.broadcast_to(lanes_part(wave), (wave.lanes,))[lanes]
        return [_scratch_part(wave, lanes, places, size)]

    return locate


def _buffer(c: Compiler, ins: Parsed, address: tuple[str, ...], size: int) -> Locate:
    """Return the function for the memory that the lanes of a buffer instruction access. Lanes out of the buffer's range
    are left out: they load zeros."""
    vector, resource, scalar_offset = address[0], address[1], address[2] if len(address) > 2 else "0"
    found = register(resource)
    if found is None or found.size != 4:
        raise c.unknown()
    if "idxen" in ins.modifiers:
        raise c.unknown("indexed buffers")
    words = [c.scalar(f"s{found.first + word}") if found.first < 106 else c.scalar(f"ttmp{found.first + word - 108}")
             for word in range(4)]  # fmt: skip
    extra = c.scalar(scalar_offset)
    lanes_part = c.vector(vector, "u32") if "offen" in ins.modifiers else None
    offset = ins.number("offset")

    def locate(wave: Wave) -> list[Part]:
        """Return which bytes of a buffer the active lanes of a wave access; lanes beyond its end are left out."""
        lanes = np.flatnonzero(wave.mask)
        low, high, records = words[0](wave), words[1](wave), words[2](wave)
        base = low | (high & 0xFFFF) << 32
        places = np.full(lanes.size, offset, np.int64)
        if lanes_part is not None:
            places += np.broadcast_to(lanes_part(wave), (wave.lanes,))[lanes].astype(np.int64)
        if SCRATCH_BASE <= base < SCRATCH_BASE + _SCRATCH_SIZE:
            # Scalar offsets count the bytes of all lanes.
            begin = (base - wave.scratch_base + extra(wave)) // wave.lanes
            return [_scratch_part(wave, lanes, places + begin, size)]
        if high >> 16 & 0x3FFF:
            raise GcnFaultError("memory", "a buffer of structures, which the interpreter does not know")
        inside = places + size <= records
        lanes, places = lanes[inside], places[inside]
        addresses = (places + (base + extra(wave))).astype(np.uint64)
        return [Part(lanes, wave.memory.bytes, wave.memory.offsets(addresses, size))]

    return locate


def _watched(locate: Locate, what: str, size: int) -> Locate:
    """Return a function that tells the wave's watcher, if there is one, what lanes access."""

    def watch(wave: Wave) -> list[Part]:
        """Locate what lanes access, and tell."""
        parts = locate(wave)
        if wave.watcher is not None:
            for part in parts:
                wave.watcher(wave, what, part.lanes, part.memory, part.places, size)
        return parts

    return watch


# ---------------------------------------------------------------- what they do there


def _load(c: Compiler, width: _Width, locate: Locate, data: str, counter: str) -> Step:
    """Return the function (a step) that executes a load from memory to vector registers.

    locate: gives the bytes that lanes access. data: the operand to load to. counter: waits look at it.
    """
    into = register(data)
    if into is None or into.file != "v":
        raise c.unknown()
    before = c.writes
    half = width.half if into.half is None else into.half
    first = c.vector_registers(data, max(1, width.size // 4), True, half)
    c.issues.append((counter, c.writes & ~before))
    write = _writer(width, first, half)
    locate = _watched(locate, "load", width.size)
    zero_first = counter == "vm"

    def load(wave: Wave) -> None:
        """Load the values of a wave's active lanes; those beyond a buffer's end get 0."""
        parts = locate(wave)
        if zero_first and len(parts) == 1 and parts[0].places.size < wave.lanes:
            _zero_missing(wave, parts[0].lanes, write, width)
        for part in parts:
            write(wave, part.lanes, gather(part.memory, part.places, width.size))

    return load


Writer = Callable[[Wave, Any, list[Array]], None]


def _zero_missing(wave: Wave, lanes: Any, write: Writer, width: _Width) -> None:
    """Write zeros to lanes of EXEC that access nothing, as they are out of a buffer's range."""
    missing = wave.mask.copy()
    missing[lanes] = False
    if missing.any():
        numbers = np.flatnonzero(missing)
        zeros = np.zeros(numbers.size, np.uint32)
        write(wave, numbers, [zeros] * max(1, width.size // 4))


def _writer(width: _Width, first: int, half: int | None) -> Writer:
    """Return the function that writes loaded words to lanes of the vector registers from ``first`` on.

    half: the half of the register that a value of 16 bits goes to, None for all of it.
    """
    size, signed = width.size, width.signed

    def write(wave: Wave, lanes: Any, rows: list[Array]) -> None:
        """Write loaded words to some lanes of a wave's registers, small ones extended by their sign or by zeros."""
        if size < 4:
            (row,) = rows
            if signed:
                rest = np.int32(32 - 8 * size)
                row = ((row.view(np.int32) << rest) >> rest).view(np.uint32)
            if half is not None:
                wave.h[first, lanes, half] = row.astype(np.uint16)
            else:
                wave.v[first, lanes] = row
            return
        for word, row in enumerate(rows):
            wave.v[first + word, lanes] = row

    return write


def _store(c: Compiler, width: _Width, locate: Locate, data: str, counter: str) -> Step:
    """Return the function (a step) that executes a store of vector registers to memory.

    locate: gives the bytes that lanes access. data: the operand to store. counter: waits look at it.
    """
    source = register(data)
    if source is None or source.file != "v":
        raise c.unknown()
    count = max(1, width.size // 4)
    half = source.half if width.half is None else width.half
    first = c.vector_registers(data, count, False, half or 0 if width.size < 4 else None)
    c.issues.append(({"vm": "store", "flat": "flat_store"}.get(counter, counter), 0))
    shift = np.uint32(16) if half else None
    locate = _watched(locate, "store", width.size)

    def store(wave: Wave) -> None:
        """Store the values of a wave's active lanes."""
        for part in locate(wave):
            rows = [wave.v[first + word, part.lanes] for word in range(count)]
            if shift is not None:
                rows = [rows[0] >> shift]
            scatter(part.memory, part.places, width.size, rows)

    return store


def _atomic(c: Compiler, atomic: Atomic, locate: Locate, data: str, into: str | None, counter: str) -> Step:
    """Return the function (a step) that executes an atomic operation on memory.

    locate: gives the bytes that lanes access. data: its operand. into: the operand for the old values, None if they are
    not returned. counter: waits look at it.
    """
    locate = _watched(locate, "atomic", atomic.size)
    count = atomic.size // 4
    operands = count * (2 if atomic.compares else 1)
    first = c.vector_registers(data, operands, False)
    result = None
    before = c.writes
    if into is not None:
        result = c.vector_registers(into, count, True)
    if result is None:
        counter = {"vm": "store", "flat": "flat_store"}.get(counter, counter)
    c.issues.append((counter, c.writes & ~before))

    def step(wave: Wave) -> None:
        """Do the atomic operation for a wave's active lanes, in their order, and return old values if wanted."""
        for part in locate(wave):
            sources = [wave.v[first + word, part.lanes] for word in range(operands)]
            old = perform(atomic, part.memory, part.places, sources[:count], sources[count:])
            if result is not None:
                for word, row in enumerate(old):
                    wave.v[result + word, part.lanes] = row

    return step


def _load_to_lds(c: Compiler, ins: Parsed, space: str, rest: str) -> Step:
    """Return the function (a step) that executes a load from memory to LDS (shared memory): lane after lane, from the
    place that M0 has."""
    match = re.fullmatch(r"load_(?:lds_)?(\w+)", rest)
    width = _width(match[1]) if match else None
    if width is None:
        raise c.unknown()
    if space == "global":
        locate = _locate(c, ins, space, ins.operands, width.size)
    elif space == "buffer":
        locate = _buffer(c, ins, ins.operands, width.size)
    else:
        raise c.unknown()
    c.scalar("m0")
    c.issues.append(("vm", 0))
    locate = _watched(locate, "load", width.size)
    offset = ins.number("offset")
    each = max(4, width.size)
    count = max(1, width.size // 4)

    def step(wave: Wave) -> None:
        """Load the values of a wave's active lanes, and store them one after the other in LDS (shared memory)."""
        begin = (wave.s[M0] & 0xFFFF) + offset
        places = _in_lds(wave, begin + np.flatnonzero(wave.mask) * each, each)
        rows = [np.zeros(wave.lanes, np.uint32) for _ in range(count)]
        for part in locate(wave):
            for row, loaded in zip(rows, gather(part.memory, part.places, width.size), strict=True):
                row[part.lanes] = loaded
        scatter(wave.group.lds, places, each, [row[wave.mask] for row in rows])

    return step


# ---------------------------------------------------------------- LDS


def _lds(c: Compiler, ins: Parsed, rest: str) -> Step:
    """Return the function (a step) that executes an instruction on LDS, the work-group's shared
    memory.

    rest: its name without ``ds_``.
    """
    o = ins.operands
    if rest in ("bpermute_b32", "permute_b32", "bpermute_fi_b32"):
        return _permute(c, ins, rest)
    if rest == "swizzle_b32":
        return _swizzle(c, ins)
    match = re.fullmatch(r"(?:read|load)_b64_tr_b(8|16)", rest)
    if match:
        return _load_transposed(c, ins, int(match[1]))
    match = re.fullmatch(r"(read|load|write|store)(?:2|_2addr)(?:_?st(?:ride)?64)?_b(32|64)", rest)
    if match:
        return _two(c, ins, match[1] in ("read", "load"), int(match[2]) // 8, 64 if "64_b" in rest else 1)
    kind, _, size = rest.partition("_")
    width = _width(size)
    if kind in ("read", "load") and width is not None:
        return _load(c, width, _lds_places(c, o[0 + 1], ins.number("offset"), width.size), o[0], "ds")
    if kind in ("write", "store") and width is not None:
        return _store(c, width, _lds_places(c, o[0], ins.number("offset"), width.size), o[1], "ds")
    returns = "_rtn" in rest
    atomic = atomic_of("atomic_" + rest.replace("_rtn", ""))
    if atomic is None:
        raise c.unknown()
    address = o[1] if returns else o[0]
    data = o[2:] if returns else o[1:]
    locate = _lds_places(c, address, ins.number("offset"), atomic.size)
    if not atomic.compares:
        return _atomic(c, atomic, locate, data[0], o[0] if returns else None, "ds")
    # gfx9 and gfx10 have what is compared in front of what is stored.
    old_order = "cmpst_" in rest
    locate = _watched(locate, "atomic", atomic.size)
    compared, stored = (data[0], data[1]) if old_order else (data[1], data[0])
    count = atomic.size // 4
    first_stored, first_compared = c.vector_registers(stored, count, False), c.vector_registers(compared, count, False)
    before = c.writes
    result = c.vector_registers(o[0], count, True) if returns else None
    c.issues.append(("ds", c.writes & ~before))

    def compare(wave: Wave) -> None:
        """Compare and swap in LDS for a wave's active lanes, and return old values if wanted."""
        for part in locate(wave):
            sources = [
                [wave.v[at + word, part.lanes] for word in range(count)] for at in (first_stored, first_compared)
            ]
            old = perform(atomic, part.memory, part.places, *sources)
            if result is not None:
                for word, row in enumerate(old):
                    wave.v[result + word, part.lanes] = row

    return compare


def _lds_places(c: Compiler, text: str, offset: int, size: int) -> Locate:
    """Return the function for the bytes of LDS that lanes access. text: the address operand, to which offset is added;
    size: bytes a lane."""
    address = c.vector(text, "u32")

    def locate(wave: Wave) -> list[Part]:
        """Return which bytes of LDS the active lanes of a wave access. Raises GcnFaultError outside the work-group's
        part."""
        lanes: Any = slice(None) if wave.full else np.flatnonzero(wave.mask)
        places = address(wave)[lanes].astype(np.int64) + offset
        return [Part(lanes, wave.group.lds, _in_lds(wave, places, size))]

    return locate


def _two(c: Compiler, ins: Parsed, loads: bool, size: int, stride: int) -> Step:
    """Return the function (a step) that loads or stores two values a lane in LDS, at two offsets from the same place.

    size: bytes of each value. stride: values between numbers of an offset, 1 or 64.
    """
    o = ins.operands
    offsets = [ins.number(name) * size * stride for name in ("offset0", "offset1")]
    count = size // 4
    address = o[1] if loads else o[0]
    what = "load" if loads else "store"
    locates = [_watched(_lds_places(c, address, offset, size), what, size) for offset in offsets]
    if loads:
        before = c.writes
        first = c.vector_registers(o[0], 2 * count, True)
        c.issues.append(("ds", c.writes & ~before))

        def load(wave: Wave) -> None:
            """Load two values for each active lane of a wave."""
            found = []
            for locate in locates:
                (part,) = locate(wave)
                found += gather(part.memory, part.places, size)
            for word, row in enumerate(found):
                wave.v[first + word, part.lanes] = row

        return load
    sources = [c.vector_registers(text, count, False) for text in o[1:3]]
    c.issues.append(("ds", 0))

    def store(wave: Wave) -> None:
        """Store two values for each active lane of a wave."""
        for source, locate in zip(sources, locates, strict=True):
            (part,) = locate(wave)
            scatter(part.memory, part.places, size, [wave.v[source + word, part.lanes] for word in range(count)])

    return store


def _permute(c: Compiler, ins: Parsed, rest: str) -> Step:
    """Return the function (a step) that executes DS_PERMUTE or DS_BPERMUTE, which move values between lanes and use no
    memory."""
    o = ins.operands
    address, source, write = c.vector(o[1], "u32"), c.vector(o[2], "b32"), c.vector_out(o[0], "b32")
    c.issues.append(("ds", c.writes))
    shift = ins.number("offset")
    fetches_inactive = "_fi_" in rest
    # On gfx10 and later, wave64 permutes within each half only.
    span = 32 if c.generation >= 10 else c.lanes
    lane = np.arange(c.lanes)

    def step(wave: Wave) -> None:
        """Give lanes the values of other lanes, whose numbers an operand has."""
        at = ((address(wave) + np.uint32(shift)) >> np.uint32(2)).astype(np.int64) % span + lane // span * span
        value = np.broadcast_to(source(wave), (wave.lanes,))
        if rest == "permute_b32":
            result = np.zeros(wave.lanes, np.uint32)
            result[at[wave.mask]] = value[wave.mask]
        else:
            result = value[at] if fetches_inactive else np.where(wave.mask[at], value[at], np.uint32(0))
        write(wave, result)

    return step


def _swizzle(c: Compiler, ins: Parsed) -> Step:
    """Return the function (a step) that executes DS_SWIZZLE: each lane gets the value of a lane that a
    constant pattern gives."""
    o = ins.operands
    source, write = c.vector(o[1], "b32"), c.vector_out(o[0], "b32")
    c.issues.append(("ds", c.writes))
    text = ins.modifiers.get("offset", "0")
    lane = np.arange(c.lanes)
    match = re.fullmatch(r"swizzle\((\w+),(.*)\)", text)
    if match is None:
        pattern = int(text, 0)
        if pattern & 0x8000:
            at = lane // 4 * 4 + (pattern >> 2 * (lane % 4) & 3)
        else:
            keep, merge, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
            at = lane // 32 * 32 + ((lane % 32 & keep | merge) ^ flip)
    else:
        mode, arguments = match[1], [part.strip().strip('"') for part in match[2].split(",")]
        if mode == "QUAD_PERM":
            at = lane // 4 * 4 + np.array([int(part) for part in arguments])[lane % 4]
        elif mode == "SWAP":
            at = lane ^ int(arguments[0], 0)
        elif mode == "REVERSE":
            at = lane ^ (int(arguments[0], 0) - 1)
        elif mode == "BROADCAST":
            at = lane // int(arguments[0]) * int(arguments[0]) + int(arguments[1])
        elif mode == "BITMASK_PERM":
            at = lane.copy()
            for bit, letter in zip((16, 8, 4, 2, 1), arguments[0], strict=True):
                chosen = {"0": lane & 0, "1": lane * 0 + bit, "p": lane & bit, "i": lane & bit ^ bit}[letter]
                at = at & ~bit | chosen
        else:
            raise c.unknown()

    def step(wave: Wave) -> None:
        """Give lanes the values of other lanes, by the pattern; 0 where the other lane is not active."""
        write(wave, np.where(wave.mask[at], source(wave)[at], np.uint32(0)))

    return step


def _load_transposed(c: Compiler, ins: Parsed, bits_wide: int) -> Step:
    """Return the function (a step) that executes a load of 64 bits a lane whose elements are transposed among 16 lanes.
    """
    o = ins.operands
    locate = _watched(_lds_places(c, o[1], ins.number("offset"), 8), "load", 8)
    before = c.writes
    first = c.vector_registers(o[0], 2, True)
    c.issues.append(("ds", c.writes & ~before))
    elements = 64 // bits_wide

    def step(wave: Wave) -> None:
        """Load the values of a wave, all of whose lanes must be active, and transpose them."""
        if not wave.full:
            raise c.unknown("with lanes that are not active")
        (part,) = locate(wave)
        words = np.stack(gather(part.memory, part.places, 8), axis=1)
        values = words.view(f"u{bits_wide // 8}").reshape(-1, elements, 16)
        # A row of 16 elements is in as many lanes as hold them; a lane gets a column.
        turned = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, elements).view(np.uint32)
        wave.v[first], wave.v[first + 1] = turned[:, 0], turned[:, 1]

    return step
