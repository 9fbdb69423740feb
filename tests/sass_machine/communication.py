"""Instructions that touch memory, other lanes, or what is special to a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.sass_machine.arithmetic import Run, opcode
from tests.sass_machine.lanes import LANES, mask_of
from tests.sass_machine.memory import Memory
from tests.sass_machine.operands import I64, U32, U64, Get, Lanes, Operands, Put
from tests.sass_machine.warp import MachineError, Warp

_SIZES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "32": 4, "64": 8, "128": 16}
_CACHES = ("E", "EF", "EL", "LU", "EU", "NA", "STRONG", "WEAK", "SYS", "GPU", "SM", "CTA", "CONSTANT", "PRIVATE",
           "LTC64B", "LTC128B", "LTC256B", "MMIO")  # fmt: skip


def _memory(o: Operands, space: str) -> Callable[[Warp], Memory]:
    if space == "shared":
        return lambda warp: warp.block.shared
    return lambda warp: warp.memory


def _local(warp: Warp, addresses: Lanes) -> Lanes:
    """Where a lane's own memory is, in that of its block."""
    if (addresses >= U64(warp.block.launch.local_size)).any():
        raise MachineError(f"local memory at {int(addresses.max()):#x} is not there")
    threads = np.arange(LANES, dtype=U64) + U64(LANES * warp.number)
    return threads * U64(warp.block.launch.local_size) + addresses


def _extended(value: Lanes, kind: str) -> Lanes:
    if kind == "S8":
        return value.astype(np.uint8).view(np.int8).astype(np.int32).view(U32)
    if kind == "S16":
        return value.astype(np.uint16).view(np.int16).astype(np.int32).view(U32)
    return value


def _space(o: Operands) -> str:
    return {"G": "global", "S": "shared", "L": "local", "": "generic"}[o.name[2:3]]


def _access(o: Operands, space: str, size: int, addresses: Callable[[Warp], Lanes]) -> Callable[[Warp, Lanes], Lanes]:
    """Where lanes touch memory, in the memory of ``_at``."""

    def get(warp: Warp, mask: Lanes) -> Lanes:
        found = addresses(warp)
        if space == "local":
            found = _local(warp, np.where(mask, found, U64(0)))
        return found[mask]

    return get


SHARED_BASE, LOCAL_BASE = 1 << 40, 2 << 40
"""Generic addresses of shared and local memory."""


def _by_space(warp: Warp, mask: Lanes, addresses: Lanes) -> Iterator[tuple[Memory, Lanes, Lanes]]:
    """Memories that lanes touch by generic addresses: the memory, its lanes, and where in it."""
    window = addresses >> U64(40)
    local = np.where(window == U64(2), addresses - U64(LOCAL_BASE), U64(0))
    for number in (0, 1, 2):
        lanes = mask & ((window == U64(number)) if number else (window != U64(1)) & (window != U64(2)))
        if lanes.any():
            memory = (warp.memory, warp.block.shared, warp.block.local)[number]
            places = (addresses, addresses - U64(SHARED_BASE), _local(warp, local))[number]
            yield memory, lanes, places[lanes]


def _at(warp: Warp, space: str) -> Memory:
    if space == "global":
        return warp.memory
    return warp.block.shared if space == "shared" else warp.block.local


def _note(warp: Warp, o: Operands, space: str, places: Lanes, size: int) -> None:
    """Keep what is touched of global memory."""
    if space == "global":
        warp.block.launch.accesses.append((o.name, places, size))


@opcode("LDG", "LDS", "LDL", "LD")
def _load(o: Operands) -> Run:
    space = _space(o)
    o.has(*_CACHES)
    kind = o.one_of("32", *_SIZES)
    size = _SIZES[kind]
    words = max(size // 4, 1)
    put = o.result(words)
    if space == "generic":
        return _generic_load(put, o.address(wide=True), size, kind)
    where = _access(o, space, size, o.address())

    def run(warp: Warp, mask: Lanes) -> None:
        places = where(warp, mask)
        _note(warp, o, space, places, size)
        found = _at(warp, space).load(places, size, space)
        values = []
        for value in found:
            whole = np.zeros(LANES, U32)
            whole[mask] = _extended(value, kind)
            values.append(whole)
        put(warp, values, mask)

    return run


def _generic_load(put: Put, address: Get, size: int, kind: str) -> Run:
    def run(warp: Warp, mask: Lanes) -> None:
        values = [np.zeros(LANES, U32) for _ in range(max(size // 4, 1))]
        for memory, lanes, places in _by_space(warp, mask, address(warp)):
            for whole, value in zip(values, memory.load(places, size, "generic"), strict=True):
                whole[lanes] = _extended(value, kind)
        put(warp, values, mask)

    return run


@opcode("QSPC")
def _qspc(o: Operands) -> Run:
    o.has("E")
    space = o.one_of("", "G", "S", "L")
    decides = o.predicate_result()
    o.take("R")
    address = o.address(wide=True)

    def run(warp: Warp, mask: Lanes) -> None:
        window = address(warp) >> U64(40)
        number = {"S": 1, "L": 2}.get(space)
        decides(warp, window == U64(number) if number else (window != U64(1)) & (window != U64(2)), mask)

    return run


@opcode("ELECT")
def _elect(o: Operands) -> Run:
    decides = o.predicate_result()
    put = o.result()
    if o.take("P", "UP").number != 7:
        raise o.unknown("of whom one is chosen")

    def run(warp: Warp, mask: Lanes) -> None:
        first = int(np.flatnonzero(mask)[0])
        decides(warp, np.arange(LANES) == first, mask)
        put(warp, [U32(first)], mask)

    return run


@opcode("STG", "STS", "STL", "ST")
def _store(o: Operands) -> Run:
    space = _space(o)
    o.has(*_CACHES)
    kind = o.one_of("32", *_SIZES)
    size = _SIZES[kind]
    address = o.address(wide=space == "generic")
    where = _access(o, space, size, address)
    words = o.words(max(size // 4, 1))
    if space == "generic":

        def generic(warp: Warp, mask: Lanes) -> None:
            for memory, lanes, places in _by_space(warp, mask, address(warp)):
                memory.store(places, size, [np.broadcast_to(word(warp), LANES)[lanes] for word in words], space)

        return generic

    def run(warp: Warp, mask: Lanes) -> None:
        values = [np.broadcast_to(word(warp), LANES)[mask] for word in words]
        places = where(warp, mask)
        _note(warp, o, space, places, size)
        _at(warp, space).store(places, size, values, space)

    return run


@opcode("LDGSTS")
def _copy(o: Operands) -> Run:
    o.has("BYPASS", "ACCESS", *_CACHES)
    size = _SIZES[o.one_of("32", *_SIZES)]
    target = _access(o, "shared", size, o.address())
    source = _access(o, "global", size, o.address())

    def run(warp: Warp, mask: Lanes) -> None:
        places = source(warp, mask)
        _note(warp, o, "global", places, size)
        values = warp.memory.load(places, size, "global")
        warp.block.shared.store(target(warp, mask), size, values, "shared")

    return run


@opcode("LDC", "ULDC")
def _constant(o: Operands) -> Run:
    kind = o.one_of("32", *_SIZES)
    size = _SIZES[kind]
    put = o.result(max(size // 4, 1))
    one = o.take("c")
    if size < 4:
        values = [o.part_of_constant(one, size, lambda value: _extended(value, kind))]
    else:
        values = o.constant(one, size // 4)
    return lambda warp, mask: put(warp, [value(warp) for value in values], mask)


def _operations(o: Operands) -> tuple[str, str, int]:
    """The operation, the type and the bytes of an atomic."""
    operation = o.one_of("", "ADD", "MIN", "MAX", "POPC", "INC", "DEC", "AND", "OR", "XOR", "EXCH", "CAS", "CAST")
    kind = o.one_of("U32", "S32", "U64", "S64", "64", "F32", "F64", "F16x2", "BF16x2")
    o.has("RN")
    o.has("FTZ")
    o.has("INC", "32")
    if operation == "POPC":
        # Counts lanes.
        return operation, "U32", 4
    if kind in ("F16x2", "BF16x2") or not operation:
        raise o.unknown("this operation")
    return operation, kind, 8 if "64" in kind else 4


def _combined(operation: str, kind: str, old: int, value: int, other: int) -> int:
    bits = 64 if "64" in kind else 32
    limit = (1 << bits) - 1
    if kind[0] == "F":
        kinds = (np.float64, U64) if bits == 64 else (np.float32, U32)
        one, two = (kinds[1](each).view(kinds[0]) for each in (old, value))
        if operation != "ADD":
            raise MachineError(f"no {operation} of floating-point numbers is known")
        with np.errstate(all="ignore"):
            return int((one + two).view(kinds[1]))
    if operation in ("MIN", "MAX"):
        key = (lambda one: one - (one >> bits - 1 << bits)) if kind[0] == "S" else (lambda one: one)
        return (min if operation == "MIN" else max)((old, value), key=key)
    return {
        "ADD": lambda: old + value & limit, "AND": lambda: old & value, "OR": lambda: old | value,
        "XOR": lambda: old ^ value, "EXCH": lambda: value, "CAS": lambda: other if old == value else old,
        "CAST": lambda: other if old == value else old, "POPC": lambda: old + 1 & limit,
        "INC": lambda: 0 if old >= value else old + 1, "DEC": lambda: value if not old or old > value else old - 1,
    }[operation]()  # fmt: skip


@opcode("ATOMG", "ATOMS", "REDG", "RED", "ATOM")
def _atomic(o: Operands) -> Run:
    extended = o.has("E")
    o.has(*_CACHES)
    space = "shared" if o.name == "ATOMS" else "global"
    operation, kind, size = _operations(o)
    words = size // 4
    returns = o.name.startswith("ATOM")
    done = o.predicate_result() if o.next_is("P") else None
    put = o.result(words) if returns else None
    where = _access(o, space, size, o.address(wide=extended))
    swaps = operation in ("CAS", "CAST")
    if operation == "CAST":
        # Whether it swapped, instead of what was there.
        o.has("SPIN")
    value = o.words(words) if operation != "POPC" else []
    other = o.words(words) if swaps else None

    def whole(warp: Warp, parts: list) -> list[int]:
        rows = [np.broadcast_to(part(warp), LANES) for part in parts]
        return [sum(int(row[lane]) << 32 * at for at, row in enumerate(rows)) for lane in range(LANES)]

    def run(warp: Warp, mask: Lanes) -> None:
        memory = _at(warp, space)
        values = whole(warp, value)
        others = whole(warp, other) if other is not None else values
        olds = np.zeros(LANES, U64)
        places = where(warp, mask)
        _note(warp, o, space, places, size)
        for lane, address in zip(np.flatnonzero(mask).tolist(), places, strict=True):
            at = np.array([address], U64)
            old = sum(int(part[0]) << 32 * number for number, part in enumerate(memory.load(at, size, space)))
            new = _combined(operation, kind, old, values[lane], others[lane])
            memory.store(at, size, [np.array([new >> 32 * part & 0xFFFFFFFF], U32) for part in range(words)], space)
            olds[lane] = int(old == values[lane]) if operation == "CAST" else old
        if put is not None:
            put(warp, [(olds >> U64(32 * part) & U64(0xFFFFFFFF)).astype(U32) for part in range(words)], mask)
        if done is not None:
            done(warp, mask, mask)

    return run


@opcode("SHFL")
def _shuffle(o: Operands) -> Run:
    mode = o.one_of("", "IDX", "UP", "DOWN", "BFLY")
    inside = o.predicate_result()
    put, a, b, c = o.result(), o.bits(), o.bits(), o.bits()
    lane = np.arange(LANES)

    def run(warp: Warp, mask: Lanes) -> None:
        value = np.broadcast_to(a(warp), LANES)
        by = np.broadcast_to(b(warp), LANES).astype(I64) & 31
        limits = np.broadcast_to(c(warp), LANES).astype(I64)
        clamp, segment = limits & 31, limits >> 8 & 31
        most = lane & segment | clamp & ~segment
        least = lane & segment
        if mode == "IDX":
            source, within = least | by & ~segment, None
        else:
            source, within = {"UP": lane - by, "DOWN": lane + by, "BFLY": lane ^ by}[mode], None
        within = source >= most if mode == "UP" else source <= most
        source = np.where(within, source, lane)
        # What lanes give that do not take part, nobody knows.
        known = mask[source & 31]
        put(warp, [np.where(known, value[source & 31], U32(0xDEADBEEF))], mask)
        inside(warp, within, mask)

    return run


@opcode("VOTE", "VOTEU")
def _vote(o: Operands) -> Run:
    mode = o.one_of("", "ANY", "ALL", "EQ")
    put = o.result() if o.next_is("R", "UR") else None
    decides = o.predicate_result() if o.next_is("P", "UP") and len(o.operands) > 1 else None
    a = o.predicate()
    if not mode:
        raise o.unknown("what is asked")

    def run(warp: Warp, mask: Lanes) -> None:
        value = np.broadcast_to(a(warp), LANES) & mask
        if put is not None:
            put(warp, [U32(mask_of(value))], mask)
        some, every = value.any(), bool((value | ~mask).all())
        if decides is not None:
            decides(warp, np.array([some if mode == "ANY" else every if mode == "ALL" else every or not some]), mask)

    return run


@opcode("MATCH")
def _match(o: Operands) -> Run:
    every = o.one_of("", "ANY", "ALL") == "ALL"
    wide = o.has("U64")
    decides = o.predicate_result() if o.next_is("P") else None
    put = o.result()
    parts = o.words(2 if wide else 1)

    def run(warp: Warp, mask: Lanes) -> None:
        value = sum(np.broadcast_to(part(warp), LANES).astype(U64) << U64(32 * at) for at, part in enumerate(parts))
        same = np.array([mask_of((value == one) & mask) for one in value], U32)
        if every:
            same = np.where(same == mask_of(mask), same, U32(0))
        put(warp, [same], mask)
        if decides is not None:
            decides(warp, same != 0, mask)

    return run


@opcode("REDUX")
def _redux(o: Operands) -> Run:
    operation = o.one_of("AND", "SUM", "MIN", "MAX", "AND", "OR", "XOR")
    signed = o.has("S32")
    put, a = o.result(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        values = np.broadcast_to(a(warp), LANES)[mask]
        if operation == "SUM":
            result = U32(int(values.astype(U64).sum()) & 0xFFFFFFFF)
        elif operation in ("MIN", "MAX"):
            values = values.view(np.int32) if signed else values
            result = (values.min() if operation == "MIN" else values.max()).astype(U32)
        else:
            function = {"AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor}[operation]
            result = U32(function.reduce(values))
        put(warp, [result], mask)

    return run


@opcode("R2UR")
def _to_uniform(o: Operands) -> Run:
    decides = o.predicate_result() if o.next_is("P") else None
    put, a = o.result(), o.bits()
    if decides is not None:
        raise o.unknown("its predicate")

    def run(warp: Warp, mask: Lanes) -> None:
        values = np.broadcast_to(a(warp), LANES)[mask]
        if (values != values[0]).any():
            raise MachineError(f"{o.parsed.text} of lanes that have different values")
        put(warp, [values[0]], mask)

    return run


def _special(warp: Warp, name: str) -> Lanes:
    launch = warp.block.launch
    lane = np.arange(LANES, dtype=np.uint64)
    axis = "XYZ".find(name[-1])
    if name.startswith("SR_TID."):
        return warp.threads()[axis]
    if name.startswith("SR_CTAID."):
        return U32(warp.block.index[axis])
    if name.endswith("MASK"):
        bit = np.uint64(1) << lane
        masks = {"SR_EQMASK": bit, "SR_LTMASK": bit - np.uint64(1), "SR_LEMASK": bit * np.uint64(2) - np.uint64(1)}
        masks["SR_GTMASK"] = masks["SR_LEMASK"] ^ np.uint64(0xFFFFFFFF)
        masks["SR_GEMASK"] = masks["SR_LTMASK"] ^ np.uint64(0xFFFFFFFF)
        if name in masks:
            return masks[name].astype(U32)
    known = {
        "SRZ": 0, "SR_LANEID": lane.astype(U32), "SR_CLOCKLO": launch.now(warp) & 0xFFFFFFFF,
        "SR_CLOCKHI": launch.now(warp) >> 32, "SR_VIRTUALSMID": warp.block.multiprocessor,
        # A nanosecond for each cycle.
        "SR_GLOBALTIMERLO": launch.now(warp) & 0xFFFFFFFF, "SR_GLOBALTIMERHI": launch.now(warp) >> 32,
        "SR_CgaCtaId": 0, "SR_SWINHI": SHARED_BASE >> 32, "SR_NTID": 0, "SR_VIRTID": warp.block.multiprocessor << 20,
    }  # fmt: skip
    if name not in known or name == "SR_NTID":
        raise MachineError(f"the special register {name} is not known")
    value = known[name]
    return U32(value) if isinstance(value, int) else value


@opcode("S2R", "S2UR")
def _s2r(o: Operands) -> Run:
    put, name = o.result(), o.take("other").text
    return lambda warp, mask: put(warp, [_special(warp, name)], mask)


@opcode("CS2R")
def _cs2r(o: Operands) -> Run:
    short = o.has("32")
    put, name = o.result(1 if short else 2), o.take("other").text
    if name not in ("SR_CLOCKLO", "SR_GLOBALTIMERLO", "SRZ"):
        raise o.unknown("what it reads")
    high = name.removesuffix("LO") + "HI" if name != "SRZ" else name
    names = (name,) if short else (name, high)
    return lambda warp, mask: put(warp, [_special(warp, one) for one in names], mask)
