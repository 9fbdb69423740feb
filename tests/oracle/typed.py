"""Typed snippets at work: a kernel with one site, and what a snippet there saves, on the embedded device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level
from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import ProbeError, Span
from neutrino.ir.operands import Register, SiteOperand
from neutrino.ir.statements import Convert
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.registry import ARRAY
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet, verified
from neutrino.probing.ir.structured import Save, Statement, walk
from neutrino.probing.ir.verifier import verify
from neutrino.ptx.snippets.verifier import verify_draft
from neutrino.ptx.snippets.writer import operand_text
from tests.fronts import parse_tracepoint
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.twin_launch import LoadedTwin
from tests.oracle.typed_model import Machine

HERE = Span(1, 1)
BLOCK = 64

_KERNEL = """.version {version}
.target sm_{arch}
.address_size 64

.visible .entry site(.param .u64 left, .param .u64 right, .param .u64 out)
{{
    .reg .b{bits} %x, %y, %z;
    .reg .b64 %a, %b, %c;
    .reg .b32 %n, %m, %t;
    ld.param.u64 %a, [left];
    ld.param.u64 %b, [right];
    ld.param.u64 %c, [out];
    mov.u32 %n, %ctaid.x;
    mov.u32 %m, %ntid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %n, %n, %m, %t;
    mad.wide.u32 %a, %n, {size}, %a;
    mad.wide.u32 %b, %n, {size}, %b;
    mad.wide.u32 %c, %n, {size}, %c;
    ld.global.b{bits} %x, [%a];
    ld.global.b{bits} %y, [%b];
    xor.b{bits} %z, %x, %y;
    st.global.b{bits} [%c], %z;
    ret;
}}
"""


def kernel(left: npt.NDArray[Any], right: npt.NDArray[Any], arch: int = 90) -> Kernel:
    """``xor`` of two arrays of unsigned integers, an element a thread, as many as a block's or a multiple."""
    size = left.itemsize
    text = _KERNEL.format(bits=8 * size, size=size, arch=arch, version="8.6" if arch >= 100 else "8.0")
    return Kernel(
        f"site_{size}", text, "site", (left.size // BLOCK, 1, 1), (BLOCK, 1, 1), (left, right, np.zeros_like(left))
    )


def local(name: str, kind: Type) -> Register:
    """A register that lives within a snippet."""
    return Register(f"%{name}", kind, 0, HERE, is_local=True)


def a_map(name: str, kinds: Iterable[str], level: Level = Level.THREAD, kind: MapType = ARRAY) -> Map:
    """A map with a field of each of these types, ``f0`` and on."""
    fields, size, _ = lay_out_fields([(f"f{index}", ScalarType(word)) for index, word in enumerate(kinds)])
    return Map(name, kind, level, size, 1, tuple(fields), HERE)


def draft(
    body: Sequence[Statement], position: str = "xor", level: Level = Level.THREAD, after: bool = False,
    more: Iterable[Register] = (), maps: Sequence[Map] | None = None,
) -> DraftProbes:  # fmt: skip
    """One probe with these statements; its registers and maps are those that they name. more: further registers."""
    tracepoint, faults = parse_tracepoint(position)
    assert tracepoint is not None
    assert not faults
    snippet = Snippet(tuple(body))
    probe = Probe("p", tracepoint, level, None if after else snippet, snippet if after else None, HERE)
    registers = dict.fromkeys([*_registers(body), *more])
    saved = dict.fromkeys(statement.map for statement in walk(body) if isinstance(statement, Save))
    return DraftProbes("p.py", "a line\n", tuple(saved if maps is None else maps), tuple(registers), (probe,))


def _registers(node: Any) -> list[Register]:
    if isinstance(node, Register):
        return [node]
    if isinstance(node, (tuple, list)):
        return list(itertools.chain.from_iterable(map(_registers, node)))
    members = getattr(node, "__dataclass_fields__", {})
    return [] if isinstance(node, Map) else list(
        itertools.chain.from_iterable(_registers(getattr(node, name)) for name in members)
    )


def sealed(drafted: DraftProbes) -> ProbeSet:
    """The draft, verified. Raises ProbeError."""
    # A plain clock after a load is warned of, and measured all the same.
    faults = [fault for fault in verify(drafted) or verify_draft(drafted) if fault.severity != "warning"]
    if faults:
        raise ProbeError(faults)
    return verified(drafted.file, drafted.source, False, "", drafted.maps, drafted.registers, drafted.probes)


def saving(results: Sequence[Register]) -> tuple[list[Statement], Save]:
    """A save of registers of any type: what no field holds is converted first."""
    body: list[Statement] = []
    operands = []
    for index, register in enumerate(results):
        field = {Type.F16: Type.F32, Type.BF16: Type.F32, Type.PRED: Type.U32}.get(register.type)
        if field is not None:
            wide = local(f"saved{index}", field)
            body.append(Convert(wide, register, HERE))
            register = wide
        operands.append(register)
    kinds = [operand.type.value.replace("b", "u") for operand in operands]
    return body, Save(a_map("M", kinds), tuple(operands), HERE)


def run(probes: ProbeSet, place: Kernel) -> dict[str, Any]:
    """What a launch of the twin leaves in each map; fails unless the program's results are its own."""
    bench = Bench(place, ())
    twins = make_twins(place, probes)
    assert skip_of(twins) is None, skip_of(twins)
    (twin,) = twins.kernels
    at = bench.place(None)
    launch = at.launch()
    loaded = LoadedTwin(twin, at.device.load(twins.render()), at.module.variables)
    views = loaded.launch(at.device, launch)
    results = at.results()
    assert results == bench.results(None)
    return views


def differences(probes: ProbeSet, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> list[str]:
    """Where what one ``Save`` of each thread recorded is not what NumPy makes of the same statements."""
    (probe,) = probes.probes
    body = (probe.before or probe.after).statements  # type: ignore[union-attr]
    machine = Machine(left.size, {"IN1": left, "IN2": right}, [item for item in probes.registers if not item.is_local])
    machine.run(body)
    ((name, wanted, threads),) = machine.saved
    (save,) = [statement for statement in walk(body) if isinstance(statement, Save)]
    records = run(probes, kernel(left, right))[name].records.reshape(-1)
    found = []
    for field, operand, values in zip(save.map.fields, save.operands, wanted, strict=True):
        got = records[field.name].view(values.dtype)
        expected = np.where(threads, values, np.zeros_like(values))
        for thread in np.flatnonzero(~same(got, expected))[:3]:
            given = f"{left[thread]:#x}, {right[thread]:#x}"
            found.append(f"{operand_text(operand)}: {got[thread]!r} in place of {expected[thread]!r}, of {given}")
    return found


def same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which elements are equal bit by bit, or both NaN."""
    width = f"u{one.dtype.itemsize}"
    equal: npt.NDArray[np.bool_] = one.view(width) == other.view(width)
    return equal | (np.isnan(one) & np.isnan(other)) if one.dtype.kind == "f" else equal


@cache
def edges(kind: Type) -> tuple[int, ...]:
    """Bits of values of a type at which something may change."""
    bits = 1 if kind is Type.PRED else kind.bits
    highest = (1 << bits) - 1
    found = {0, 1, 2, 3, 7, 8, highest, highest - 1, highest >> 1, (highest >> 1) + 1, (highest >> 1) + 2, 0x55, 100}
    if kind.is_float:
        digits = {Type.F16: 10, Type.BF16: 7, Type.F32: 23, Type.F64: 52}[kind]
        infinity = (highest >> 1) >> digits << digits
        one = infinity >> 1 >> digits << digits
        half = one - (1 << digits)
        found |= {infinity, infinity + 1, infinity - 1, infinity | 1 << (digits - 1), one, one + 1, half, half | 1}
        found |= {1 << digits, (1 << digits) - 1, one + (3 << (digits - 1)), one + (1 << (digits + 2))}
        # 127.5, 255.5 … and what is beyond the integers.
        for power in (7, 8, 15, 16, 31, 32, 63, 64):
            word = one + (power << digits)
            found |= {word, word - 1, word + 1} if word < infinity else set()
        found |= {word | 1 << (bits - 1) for word in found}
    else:
        for power in range(7, bits, 8):
            found |= {(1 << power) - 1, 1 << power, (1 << power) + 1, highest ^ (1 << power)}
    return tuple(sorted({word & highest for word in found}))


def pairs(kind: Type, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Arrays of bits for two operands: all pairs of edges, and random words, in whole blocks."""
    bits = max(kind.bits, 16)
    words = [(a, b) for a in edges(kind) for b in edges(kind)]
    random = np.random.default_rng(seed)
    wanted = -(-(len(words) + 256) // BLOCK) * BLOCK
    left, right = (
        random.integers(0, 1 << kind.bits, wanted, np.uint64, endpoint=False) if kind.bits < 64
        else random.integers(0, (1 << 64) - 1, wanted, np.uint64, endpoint=True)
        for _ in range(2)
    )  # fmt: skip
    for index, (a, b) in enumerate(words):
        left[index], right[index] = a, b
    if kind is Type.PRED:
        left, right = left % 2, right % 2
    return left.astype(f"u{bits // 8}"), right.astype(f"u{bits // 8}")


def site(name: str) -> SiteOperand:
    """A value of the kernel's instruction: IN1, IN2, OUT."""
    return SiteOperand(name)


