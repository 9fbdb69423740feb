"""The probes of the matrix, each written twice: as TOML for the rewriter, in Python for the simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from neutrino.emulator.address_space import Space
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.tracing.views import MapView
from neutrino.verification import load_probe_file, load_probes
from tests.oracle.simulation import Difference, Lanes, Side, Simulation, compare


@dataclass(frozen=True)
class Probe:
    """A probe file under test.

    sides: its snippets in Python, in file order. text: TOML, None: it ships under this name. registers: the
    simulation needs register values. ignore: fields of no known value (clocks). check: more to hold.
    """

    name: str
    sides: tuple[Side, ...]
    text: str | None = None
    registers: bool = False
    ignore: frozenset[str] = frozenset()
    check: Callable[[dict[str, MapView], Simulation], list[Difference]] | None = None

    @property
    def positions(self) -> frozenset[str]:
        """Its tracepoints."""
        return frozenset(side.position for side in self.sides)

    def judge(self, views: dict[str, MapView], simulation: Simulation) -> list[Difference]:
        """What the maps hold and should not."""
        found = [difference for view in views.values() for difference in compare(view, simulation, ignore=self.ignore)]
        return found + (self.check(views, simulation) if self.check else [])


@cache
def probe_set(probe: Probe) -> ProbeSet:
    """As the rewriter takes it."""
    if probe.text is None:
        return load_probes([probe.name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{probe.name}.toml"
        path.write_text('platform = "cuda"\n' + probe.text)
        return load_probe_file(path)


def _map(
    name: str, fields: str, size: int, *, kind: str = "array", level: str = "thread", cap: int = 1
) -> str:
    room = f"cap = {cap}\n" if kind == "array" else ""
    return (
        f'[map.{name}]\ntype = "{kind}"\nlevel = "{level}"\nsize = {size}\n{room}'
        f"data = {{ {', '.join(part.replace(' ', ' = ', 1) for part in _quoted(fields))} }}\n"
    )


def _quoted(fields: str) -> list[str]:
    return [f'{name} "{kind}"' for name, kind in (field.split() for field in fields.split(","))]


def _at(name: str, position: str, level: str = "thread", **sides: str) -> str:
    snippets = "\n".join(f'{side} = """\n{text}\n"""' for side, text in sides.items())
    return f'[probe.{name}]\nposition = "{position}"\nlevel = "{level}"\n{snippets}\n'


# The shipped ones


def _block_sched_end(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("BlockSched", lanes, 0, 0, 0)


def _check_block_sched(views: dict[str, MapView], _: Simulation) -> list[Difference]:
    records = views["BlockSched"].records
    found = []
    for field in ("start", "elapsed"):
        if not (records[field] > 0).all():
            found.append(Difference("BlockSched", f"a warp without {field}"))
    if (records["cuid"] != records["cuid"][:, :1]).any():
        found.append(Difference("BlockSched", "one block on two multiprocessors"))
    return found


def _bytes_into(field: str) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        for access in lanes.accesses():
            # To isspacep, and so to the probe, the window of parameters is global memory.
            inside = (access.spaces == Space.GLOBAL) | (access.spaces == Space.PARAM)
            simulation.register(field)[access.threads[inside]] += np.uint64(access.size)

    return run


def _count_into(field: str) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        simulation.register(field)[lanes.threads] += np.uint64(1)

    return run


def _gmem_end(simulation: Simulation, lanes: Lanes) -> None:
    fields = ("load", "store", "atomic", "async", "uncounted")
    simulation.save("GmemBytes", lanes, *(simulation.register(field)[lanes.threads] for field in fields))


_ASYNC = (
    "cp.async.ca", "cp.async.cg", "cp.async.bulk.shared.global !tensor !reduce",
    "cp.async.bulk.global.shared !tensor !reduce !cp_mask", "cp.reduce.async.bulk.global.shared !tensor",
)  # fmt: skip

BLOCK_SCHED = Probe(
    "block_sched",
    (Side("kernel", _block_sched_end, after=True, warp=True),),
    ignore=frozenset({"start", "elapsed", "cuid"}),
    check=_check_block_sched,
)
GMEM_BYTES = Probe(
    "gmem_bytes",
    (
        *(Side(f"{name}.{space}", _bytes_into("load")) for name in ("ld", "ldu") for space in ("global", "generic")),
        Side("st.global", _bytes_into("store")),
        Side("st.generic !bulk", _bytes_into("store")),
        *(
            Side(f"{opcode}.{space}", _bytes_into("atomic"))
            for opcode in ("atom", "red")
            for space in ("global", "generic")
        ),
        *(Side(position, _bytes_into("async")) for position in _ASYNC),
        *(
            Side(position, _count_into("uncounted"))
            for position in ("multimem", "tensormap", "tex", "tld4", "suld")
        ),
        Side("kernel", _gmem_end, after=True),
    ),
)

# Every access in order, with its address and width: thread level, capped, counted

_PLACES = (
    "ld.global", "ld.shared", "ld.local", "ld.generic", "st.global", "st.shared", "st.local", "st.generic",
    "atom", "red", "cp.async.ca", "cp.async.cg",
)  # fmt: skip


def _access(code: int) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        simulation.save("Access", lanes, lanes.address, lanes.size, code, 0xFFFFFFFF)

    return run


ACCESSES = Probe(
    "accesses",
    tuple(Side(place, _access(code)) for code, place in enumerate(_PLACES)),
    text=_map("Access", "address u64, bytes u64, place u32, mark u32", 24, cap=12)
    + "".join(
        _at(f"a{code}", place, before=f"SAVE [ Access ] {{ ADDR, BYTES, {code}, 0xffffffff }};")
        for code, place in enumerate(_PLACES)
    ),
)

# Results and inputs, on both sides of their instructions

_COMPUTING = (
    ("mad.lo", 3, True), ("setp", 2, True), ("add.s32", 2, False), ("mul.wide", 2, False), ("fma", 3, False),
    ("mul.f32", 2, False), ("mul.rn.f32", 2, False), ("add.rn.f32", 2, False), ("selp", 2, False), ("cvt", 1, False),
    ("min", 2, False), ("neg", 1, False),
)  # fmt: skip
"""Position, inputs, whether it is probed before the instruction as well as after it."""
_RESULTS = ("ld.global", "ld.shared", "ld.local", "shfl")


def _values(inputs: int, *, result: bool) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        numbers = [lanes.operand(number + 1) for number in range(min(inputs, 2))]
        first = [lanes.result() if result else 77]
        simulation.save("Values", lanes, *first, *numbers, *[0] * (2 - len(numbers)))

    return run


def _values_text(number: int, position: str, inputs: int, *, both: bool) -> str:
    read = ", ".join([f"IN{index + 1}.bits" for index in range(min(inputs, 2))] + ["0"] * (2 - min(inputs, 2)))
    before = {"before": f"SAVE [ Values ] {{ 77, {read} }};"} if both else {}
    return _at(f"v{number}", position, **before, after=f"SAVE [ Values ] {{ OUT.bits, {read} }};")


VALUES = Probe(
    "values",
    (
        *(
            Side(position, _values(inputs, result=after), after=after)
            for position, inputs, both in _COMPUTING
            for after in ((False, True) if both else (True,))
        ),
        *(Side(position, _values(0, result=True), after=True) for position in _RESULTS),
    ),
    text=_map("Values", "out u64, in1 u64, in2 u64", 24, cap=16)
    + "".join(
        _values_text(number, position, inputs, both=both) for number, (position, inputs, both) in enumerate(_COMPUTING)
    )
    + "".join(
        _at(f"r{number}", position, after="SAVE [ Values ] { OUT.bits, 0, 0 };")
        for number, position in enumerate(_RESULTS)
    ),
    registers=True,
)

# Elements of vectors


def _vector(elements: int, *, load: bool) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        found = [lanes.result(at) if load else lanes.operand(2, element=at) for at in range(elements)]
        simulation.save("Vector", lanes, lanes.address, *found, *[0] * (4 - elements))

    return run


_LETTERS = ("", ".y", ".z", ".w")


def _vector_text(name: str, position: str, elements: int, operand: str, side: str) -> str:
    words = [f"{operand}{_LETTERS[at]}.bits" for at in range(elements)] + ["0"] * (4 - elements)
    return _at(name, position, **{side: f"SAVE [ Vector ] {{ ADDR, {', '.join(words)} }};"})


VECTORS = Probe(
    "vectors",
    (
        Side("ld.v2 !param", _vector(2, load=True), after=True),
        Side("ld.v4 !param", _vector(4, load=True), after=True),
        Side("st.v2 !param", _vector(2, load=False)),
        Side("st.v4 !param", _vector(4, load=False), after=True),
    ),
    text=_map("Vector", "address u64, x u64, y u64, z u64, w u64", 40, cap=2)
    + _vector_text("l2", "ld.v2 !param", 2, "OUT", "after")
    + _vector_text("l4", "ld.v4 !param", 4, "OUT", "after")
    + _vector_text("s2", "st.v2 !param", 2, "IN2", "before")
    + _vector_text("s4", "st.v4 !param", 4, "IN2", "after"),
    registers=True,
)

# Sums of both widths, signs and levels; their registers are called as those of compilers


def _sum_access(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Sums", lanes, 1, lanes.address, 3, -5, -(1 << 40) - 1)


def _sum_step(name: str) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        register = simulation.register(name)
        register[lanes.threads] += np.uint64(1)
        odd = register[lanes.threads] & np.uint64(1)
        simulation.register("odd")[lanes.threads] += odd

    return run


def _sum_end(simulation: Simulation, lanes: Lanes) -> None:
    names = ("branches", "setps", "odd")
    simulation.save("Steps", lanes, *(simulation.register(name)[lanes.threads] for name in names))


def _warp_end(simulation: Simulation, lanes: Lanes) -> None:
    steps = simulation.register("setps")[lanes.threads]
    simulation.save("WarpSteps", lanes, 1, steps)


def _step_text(register: str) -> str:
    return (
        f".reg .u64 {register};\n.reg .pred %p1;\n.reg .u64 %rd1;\nadd.u64 {register}, {register}, 1;\n"
        f"and.b64 %rd1, {register}, 1;\nsetp.ne.u64 %p1, %rd1, 0;\n.reg .u64 %rd4;\n@%p1 add.u64 %rd4, %rd4, 1;"
    )


SUMS = Probe(
    "sums",
    (
        Side("st.global", _sum_access),
        Side("red", _sum_access),
        Side("bra", _sum_step("branches")),
        Side("setp", _sum_step("setps"), after=True),
        Side("kernel", _sum_end, after=True),
        Side("kernel", _warp_end, after=True, warp=True),
    ),
    text=_map("Sums", "count u64, address u64, three u32, five s32, deep s64", 32, kind="sum")
    + _map("Steps", "branches u64, setps u64, odd u64", 24, kind="sum")
    + _map("WarpSteps", "warps u32, setps u64", 16, kind="sum", level="warp")
    + _at("store", "st.global", before=".reg .s64 %rd5;\nmov.s64 %rd5, -1099511627777;\n"
          "SAVE [ Sums ] { 1, ADDR, 3, -5, %rd5 };")
    + _at("red", "red", before="mov.s64 %rd5, -1099511627777;\nSAVE [ Sums ] { 1, ADDR, 3, -5, %rd5 };")
    + _at("branch", "bra", before=_step_text("%rd2"))
    + _at("compare", "setp", after=_step_text("%rd3"))
    + _at("end", "kernel", after="SAVE [ Steps ] { %rd2, %rd3, %rd4 };")
    + _at("warp_end", "kernel", "warp", after="SAVE [ WarpSteps ] { 1, %rd3 };"),
)  # fmt: skip

# Constants, which runs of instructions add up

_COUNTED = ("add", "sub", "mul", "mad", "mov", "ld", "st", "setp", "selp", "and", "xor", "shl", "cvt", "bra", "brx")


def _count_one(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Counts", lanes, 1, 7)


COUNTS = Probe(
    "counts",
    tuple(Side(opcode, _count_one) for opcode in _COUNTED),
    text=_map("Counts", "ones u64, sevens u64", 16, kind="sum")
    + _at("count", " | ".join(_COUNTED), before="SAVE [ Counts ] { 1, 7 };"),
)


# Constants in registers of every level, which grow in one proportion or apart, looked at when the thread ends


def _grow(**amounts: int) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        for name, amount in amounts.items():
            simulation.register(name)[lanes.threads] += np.uint64(amount)

    return run


def _grow_bytes(simulation: Simulation, lanes: Lanes) -> None:
    _grow(bytes=lanes.size, accesses=2)(simulation, lanes)


def _grown(target: str, *values: str | int) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        registers = (
            simulation.register(value)[lanes.threads] if isinstance(value, str) else value for value in values
        )
        simulation.save(target, lanes, *registers)

    return run


GROWING = Probe(
    "growing",
    (
        Side("add", _grow(alu=3)), Side("sub", _grow(alu=3)), Side("setp", _grow(seen=1), after=True),
        Side("ld.global", _grow_bytes), Side("st.global", _grow_bytes), Side("bra", _grow(jumps=1)),
        Side("add", _grow(warp=5), warp=True), Side("selp", _grow(block=7), block=True),
        Side("kernel", _grown("Threads", "alu", "bytes", "accesses", "jumps", 9, "jumps"), after=True),
        Side("kernel", _grown("Seen", "seen", "accesses"), after=True),
        Side("kernel", _grown("Warps", "warp"), after=True, warp=True),
        Side("kernel", _grown("Blocks", "block"), after=True, block=True),
    ),
    text=_map("Threads", "alu u64, bytes u64, accesses s64, jumps u32, nines u32, far u32", 40, kind="sum")
    + _map("Seen", "seen u64, accesses u64", 16)
    + _map("Warps", "warp u64", 8, kind="sum", level="warp")
    + _map("Blocks", "block u32", 4, kind="sum", level="block")
    + _at("alu", "add | sub", before=".reg .u64 %alu;\nadd.u64 %alu, %alu, 3;")
    + _at("seen", "setp", after=".reg .u64 %seen;\nadd.u64 %seen, %seen, 1;")
    + _at("bytes", "ld.global | st.global", before=".reg .u64 %bytes, %accesses;\nadd.u64 %bytes, %bytes, BYTES;\n"
          "add.u64 %accesses, %accesses, 2;")
    + _at("jumps", "bra", before=".reg .u32 %jumps;\nadd.u32 %jumps, %jumps, 1;")
    + _at("warp", "add", "warp", before=".reg .u64 %warp;\nadd.u64 %warp, %warp, 5;")
    + _at("block", "selp", "block", before=".reg .u32 %block;\nadd.u32 %block, %block, 7;")
    + _at("end", "kernel", after="SAVE [ Threads ] { %alu, %bytes, %accesses, %jumps, 9, %jumps };\n"
          "SAVE [ Seen ] { %seen, %accesses };")
    + _at("warp_end", "kernel", "warp", after="SAVE [ Warps ] { %warp };")
    + _at("block_end", "kernel", "block", after="SAVE [ Blocks ] { %block };"),
)  # fmt: skip


# Warp level: its own slot, its own count, registers that live through the kernel


def _warp_access(simulation: Simulation, lanes: Lanes) -> None:
    number = simulation.register("n")
    number[lanes.threads] += np.uint64(1)
    simulation.save("Warp", lanes, lanes.address, number[lanes.threads], lanes.size)
    simulation.register("last")[lanes.threads] = lanes.address


def _warp_last(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Last", lanes, *(simulation.register(name)[lanes.threads] for name in ("last", "n", "barriers")))


WARPS = Probe(
    "warps",
    (
        Side("ld.global", _warp_access, warp=True),
        Side("st.global", _warp_access, after=True, warp=True),
        Side("st.shared", _warp_access, warp=True),
        Side("bar", _count_into("barriers"), warp=True),
        Side("barrier.sync", _count_into("barriers"), warp=True),
        Side("kernel", _warp_last, after=True, warp=True),
    ),
    text=_map("Warp", "address u64, number u32, bytes u64", 24, level="warp", cap=4)
    + _map("Last", "address u64, number u32, barriers u32", 16, level="warp")
    + "".join(
        _at(f"w{number}", position, "warp", **{side: ".reg .u32 %n;\n.reg .u64 %last;\nadd.u32 %n, %n, 1;\n"
            "SAVE [ Warp ] { ADDR, %n, BYTES };\nmov.u64 %last, ADDR;"})
        for number, (position, side) in enumerate(
            (("ld.global", "before"), ("st.global", "after"), ("st.shared", "before"))
        )
    )
    + _at("bar", "bar", "warp", before=".reg .u32 %bars;\nadd.u32 %bars, %bars, 1;")
    + _at("barrier", "barrier.sync", "warp", before="add.u32 %bars, %bars, 1;")
    + _at("end", "kernel", "warp", after="SAVE [ Last ] { %last, %n, %bars };"),
)  # fmt: skip

# Block level, and caps that the launch says


def _block_store(simulation: Simulation, lanes: Lanes) -> None:
    number = simulation.register("stores")
    number[lanes.threads] += np.uint64(1)
    simulation.save("Block", lanes, lanes.address, number[lanes.threads], lanes.size)
    simulation.save("BlockSums", lanes, 1, lanes.address)


def _every_store(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Each", lanes, lanes.address, simulation.register("stores")[lanes.threads])


def _warp_load(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Wide", lanes, lanes.address, lanes.size)


def _block_end(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("End", lanes, simulation.register("stores")[lanes.threads])


BLOCKS = Probe(
    "blocks",
    (
        Side("st.global", _block_store, block=True),
        Side("st.global", _every_store),
        Side("ld.global", _warp_load, warp=True),
        Side("kernel", _block_end, after=True, block=True),
    ),
    text=_map("Block", "address u64, number u32, bytes u64", 24, level="block", cap=3)
    + _map("BlockSums", "count u32, address u64", 16, kind="sum", level="block")
    + _map("Each", "address u64, number u64", 16, cap=5)
    + _map("Wide", "address u64, bytes u64", 16, level="warp", cap=5)
    + _map("End", "number u64", 8, level="block", cap=5)
    + _at("b_store", "st.global", "block", before=".reg .u64 %stores;\n.reg .u32 %low;\nadd.u64 %stores, %stores, 1;\n"
          "cvt.u32.u64 %low, %stores;\nSAVE [ Block ] { ADDR, %low, BYTES };\nSAVE [ BlockSums ] { 1, ADDR };")
    + _at("b_each", "st.global", before="SAVE [ Each ] { ADDR, %stores };")
    + _at("b_load", "ld.global", "warp", before="SAVE [ Wide ] { ADDR, BYTES };")
    + _at("b_end", "kernel", "block", after="SAVE [ End ] { %stores };"),
)  # fmt: skip

# Every kind of field, at the entry and at the ends


def _kinds(step: int) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        value = lanes.threads.astype(np.uint64) * np.uint64(0x9E3779B1) + np.uint64(step)
        single = (lanes.threads % 977).astype(np.float32) + np.float32(step)
        low = value & np.uint64(0xFFFFFFFF)
        simulation.save("Kinds", lanes, *[low] * 4, single, low, low, value, value, single.astype(np.float64))
        simulation.save("Small", lanes, low, low, low)

    return run


def _kinds_text(step: int) -> str:
    return f"""
.reg .u32 %lin, %blk, %t, %mod;
.reg .u64 %wide;
.reg .f32 %single;
.reg .f64 %double;
mov.u32 %lin, %tid.z;
mov.u32 %t, %ntid.y;
mov.u32 %mod, %tid.y;
mad.lo.u32 %lin, %lin, %t, %mod;
mov.u32 %t, %ntid.x;
mov.u32 %mod, %tid.x;
mad.lo.u32 %lin, %lin, %t, %mod;
mov.u32 %blk, %ctaid.z;
mov.u32 %t, %nctaid.y;
mov.u32 %mod, %ctaid.y;
mad.lo.u32 %blk, %blk, %t, %mod;
mov.u32 %t, %nctaid.x;
mov.u32 %mod, %ctaid.x;
mad.lo.u32 %blk, %blk, %t, %mod;
mov.u32 %t, %ntid.x;
mov.u32 %mod, %ntid.y;
mul.lo.u32 %t, %t, %mod;
mov.u32 %mod, %ntid.z;
mul.lo.u32 %t, %t, %mod;
mad.lo.u32 %lin, %blk, %t, %lin;
mul.wide.u32 %wide, %lin, 0x9e3779b1;
add.u64 %wide, %wide, {step};
rem.u32 %mod, %lin, 977;
cvt.rn.f32.u32 %single, %mod;
add.rn.f32 %single, %single, {step}.0;
cvt.f64.f32 %double, %single;
cvt.u32.u64 %t, %wide;
SAVE [ Kinds ] {{ %t, %t, %t, %t, %single, %t, %t, %wide, %wide, %double }};
SAVE [ Small ] {{ %t, %t, %t }};
"""


_KIND_FIELDS = "a u8, b s8, c u16, d s16, e f32, f u32, g s32, h u64, i s64, j f64"
KINDS = Probe(
    "kinds",
    (Side("kernel", _kinds(1)), Side("kernel", _kinds(2), after=True)),
    text=_map("Kinds", _KIND_FIELDS, 48, cap=2)
    + _map("Small", "a u8, b s8, c u16", 4, cap=1)
    + _at("kinds", "kernel", before=_kinds_text(1), after=_kinds_text(2)),
)

# Clocks around loads: only their order is known


def _latency(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Latency", lanes, 0)


def _check_latency(views: dict[str, MapView], _: Simulation) -> list[Difference]:
    records = views["Latency"].valid()
    late = records["cycles"][records["cycles"].astype(np.int64) <= 0]
    return [Difference("Latency", f"{late.size} loads that took no time")] if late.size else []


CLOCKS = Probe(
    "clocks",
    (Side("ld.global", _latency, after=True),),
    text=_map("Latency", "cycles u64", 8, cap=2)
    + _at(
        "latency",
        "ld.global",
        before=".reg .u64 %t0, %t1;\nmov.u64 %t0, %clock64;",
        after="mov.u64 %t1, %clock64;\nsub.u64 %t1, %t1, %t0;\nSAVE [ Latency ] { %t1 };",
    ),
    ignore=frozenset({"cycles"}),
    check=_check_latency,
)

# Registers that warp level writes and thread level reads; equal code beside stores that wait


def _mixed_store(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Mixed", lanes, simulation.register("loads")[lanes.threads])


def _product(simulation: Simulation, lanes: Lanes) -> None:
    simulation.save("Product", lanes, lanes.result())


MIXED = Probe(
    "mixed",
    (
        Side("ld.global", _count_into("loads"), warp=True),
        Side("st.global", _mixed_store),
        Side("mul.f32", _product, after=True),
    ),
    text=_map("Mixed", "loads u64", 8, cap=3)
    + _map("Product", "value u64", 8)
    + _at("load", "ld.global", "warp", before=".reg .u64 %loads;\nadd.u64 %loads, %loads, 1;")
    + _at("store", "st.global", before="SAVE [ Mixed ] { %loads };")
    + _at("other", "ld.global", before=".reg .pred %never;\n.reg .u64 %idle;\n@%never add.u64 %idle, %idle, 1;")
    + _at("product", "mul.f32", after="SAVE [ Product ] { OUT.bits };"),
    registers=True,
)

# Conditions and wildcards, and the plain patterns that they come to

_CONDITIONS = (
    ("load & ld.global & !nc", ("ld.global !nc",)),
    ("atom.*.add | (memory & red.*.add)", ("atom.add", "red.add")),
    ("(ld.global | ld.shared | st.shared) & !(b32 | v4)",
     ("ld.global !b32 !v4", "ld.shared !b32 !v4", "st.shared !b32 !v4")),
    ("*.wide.u32 | mul.lo.* & !(s64 | u64)", ("mul.wide.u32", "mad.wide.u32", "mul.lo !s64 !u64")),
    ("barrier & !(bar.sync & !aligned) & bar*", ("barrier", "bar.red", "bar.arrive")),
)  # fmt: skip


def _condition(number: int) -> Callable[[Simulation, Lanes], None]:
    def run(simulation: Simulation, lanes: Lanes) -> None:
        simulation.save("Conditions", lanes, *(int(number == at) for at in range(len(_CONDITIONS))))

    return run


def _ones(number: int) -> str:
    return ", ".join(str(int(number == at)) for at in range(len(_CONDITIONS)))


CONDITIONS = Probe(
    "conditions",
    tuple(
        Side(position, _condition(number))
        for number, (_, positions) in enumerate(_CONDITIONS)
        for position in positions
    ),
    text=_map("Conditions", "c0 u64, c1 u64, c2 u64, c3 u64, c4 u64", 40, kind="sum")
    + "".join(
        _at(f"c{number}", condition, before=f"SAVE [ Conditions ] {{ {_ones(number)} }};")
        for number, (condition, _) in enumerate(_CONDITIONS)
    ),
)

# Of all five, one file: each costs a twin of each kernel.
VARIOUS = Probe(
    "various",
    (*VECTORS.sides, *CLOCKS.sides, *MIXED.sides, *BLOCKS.sides, *CONDITIONS.sides),
    text="".join(probe.text or "" for probe in (VECTORS, CLOCKS, MIXED, BLOCKS, CONDITIONS)),
    registers=True,
    ignore=CLOCKS.ignore,
    check=CLOCKS.check,
)

SHIPPED = (BLOCK_SCHED, GMEM_BYTES)
PROBES = (*SHIPPED, ACCESSES, VALUES, SUMS, WARPS, KINDS, VARIOUS)
