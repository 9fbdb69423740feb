"""Twins of typed probes: what they save under an ``If``, that ptxas takes them, their arithmetic, and as TOML."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from neutrino.abi.levels import Level
from neutrino.abi.reasons import Reason
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.statements import Compare, Convert, Load, Operation, Operator, Relation
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.registry import ARRAY, SUM
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import If, Save, Statement
from neutrino.probing.ir.verifier import verify
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import trace_text
from neutrino.verification import read_probes
from tests.oracle.assembling import arithmetic_differs, assemble
from tests.oracle.bench import Kernel, make_twins, skip_of
from tests.oracle.typed import BLOCK, HERE, a_map, draft, kernel, local, run, saving, sealed, site
from tests.oracle.typed_programs import programs

ARCHITECTURES = (75, 80, 90, 100)
A, B, LESS = local("a", Type.U32), local("b", Type.U32), local("less", Type.PRED)
COMPARED: tuple[Statement, ...] = (
    Load(A, site("IN1"), HERE), Load(B, site("IN2"), HERE), Compare(Relation.LT, LESS, A, B, HERE),
)  # fmt: skip
LEFT = np.arange(2 * BLOCK, dtype=np.uint32) * 7 % 100
RIGHT = np.arange(2 * BLOCK, dtype=np.uint32) * 13 % 100
LESS_THAN = LEFT < RIGHT
SLOTS = {Level.THREAD: 1, Level.WARP: 32, Level.BLOCK: BLOCK}
"""How many threads share a slot, of which the first one saves."""


def _either(entry: Map) -> tuple[Statement, ...]:
    """A save on both sides: of the smaller one, and of 1000 and the larger one where they are not in order."""
    more = local("more", Type.U32)
    otherwise = (
        Operation(Operator.ADD, more, (A, Constant(Type.U32, 1000)), HERE),
        Save(entry, (more,), HERE),
    )
    return (*COMPARED, If(LESS, (Save(entry, (A,), HERE),), otherwise, HERE))


@pytest.mark.parametrize("level", SLOTS)
@pytest.mark.parametrize("kind", [ARRAY, SUM])
def test_a_save_on_either_side(level: Level, kind: MapType) -> None:
    entry = a_map("M", ["u32"], level, kind)
    view = run(sealed(draft(_either(entry), level=level)), kernel(LEFT, RIGHT))["M"]
    wanted = np.where(LESS_THAN, LEFT, LEFT + 1000)[:: SLOTS[level]]
    if kind is SUM:
        assert view.total()["f0"] == wanted.sum()
    else:
        assert view.records["f0"].reshape(-1).tolist() == wanted.tolist()


@pytest.mark.parametrize("level", SLOTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_save_on_one_side_alone(level: Level, after: bool) -> None:
    """Slots whose thread is on the other side stay empty; counts say which."""
    entry = Map("M", ARRAY, level, 4, 3, a_map("M", ["u32"]).fields, HERE)
    inner = local("inner", Type.PRED)
    body: tuple[Statement, ...] = (
        *COMPARED,
        Compare(Relation.GT, inner, A, Constant(Type.U32, 20), HERE),
        If(LESS, (), (If(inner, (Save(entry, (A,), HERE), Save(entry, (B,), HERE)), (), HERE),), HERE),
    )
    view = run(sealed(draft(body, level=level, after=after)), kernel(LEFT, RIGHT))["M"]
    saved = (~LESS_THAN & (LEFT > 20))[:: SLOTS[level]]
    assert view.counts is not None
    assert view.counts.reshape(-1).tolist() == (2 * saved).tolist()


def test_a_register_that_all_probes_share_is_changed_on_one_side() -> None:
    count = Register("%count", Type.U64, 5, HERE)
    one = Constant(Type.U64, 1)
    entry = a_map("M", ["u64"])
    body = (
        *COMPARED, If(LESS, (Operation(Operator.ADD, count, (count, one), HERE),), (), HERE),
        Save(entry, (count,), HERE),
    )  # fmt: skip
    view = run(sealed(draft(body)), kernel(LEFT, RIGHT))["M"]
    assert view.records["f0"].reshape(-1).tolist() == (5 + LESS_THAN).tolist()


def _reads_back(probes: ProbeSet) -> None:
    text = trace_text(lower(probes))
    again = read_probes("probe.toml", text)
    assert again.digest == lower(probes).digest, text
    assert trace_text(again).partition("\n")[2] == text.partition("\n")[2]


def test_random_programs_assemble_and_read_back_as_toml(pytestconfig: pytest.Config, ptxas: object) -> None:
    """As TOML the verifier of hand-written assembly sees each instruction."""
    count = pytestconfig.getoption("--random-rewrites") or 40
    places = {arch: kernel(LEFT, RIGHT, arch) for arch in ARCHITECTURES}

    @settings(
        max_examples=count, phases=(Phase.generate,), deadline=None, database=None, derandomize=count == 40,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(programs())
    def check(program: tuple[tuple[Statement, ...], tuple[Register, ...]]) -> None:
        body, shared = program
        drafted = draft(body, more=shared)
        assume(not verify(drafted))
        probes = sealed(drafted)
        _reads_back(probes)
        place = places[ARCHITECTURES[len(body) % len(ARCHITECTURES)]]
        _assembles(probes, place)

    check()


def _assembles(probes: ProbeSet, place: Kernel) -> str:
    """Why there is no twin; empty where there is one, which ptxas takes."""
    twins = make_twins(place, probes)
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason is Reason.UNSUPPORTED
        assert "needs sm_80" in skip.detail, skip
        assert ".target sm_75" in place.text
        return skip.detail
    cubin, said = assemble(twins.render())
    assert cubin, f"{said}\n{twins.render()}"
    return ""


def _all_of(kind: Type) -> ProbeSet:
    """A probe with every operator of a type, and conversions from it and to it."""
    x, y, n = local("x", kind), local("y", kind), local("n", Type.U32)
    body: list[Statement] = [Load(n, site("IN1"), HERE)]
    if kind is not Type.U32:
        body += [Convert(x, n, HERE), Convert(y, n, HERE)]
    else:
        body += [Operation(Operator.MOVE, x, (n,), HERE), Operation(Operator.MOVE, y, (n,), HERE)]
    results = []
    for operator in Operator:
        result = local(operator.value, kind)
        for sources in ((x,), (x, y), (x, n)):
            statement = Operation(operator, result, sources, HERE)
            if operator in {Operator.POPC, Operator.CLZ} and kind is not Type.U32:
                continue
            if not verify(draft([*body, statement])):
                body.append(statement)
                results.append(result)
                break
    for other in PROBE_TYPES:
        back, forth = local(f"to_{other}", other), local(f"from_{other}", kind)
        if Type.F16X2 in {other, kind}:
            continue
        body += [Convert(back, x, HERE), Convert(forth, back, HERE)]
        results += [forth]
    more, save = saving(results)
    return sealed(draft([*body, *more, save]))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_type_assembles(arch: int, ptxas: object) -> None:
    """But for what sm_75 does not have, which is a reason that names the instruction."""
    place = kernel(LEFT, RIGHT, arch)
    reasons = {kind: _assembles(_all_of(kind), place) for kind in PROBE_TYPES if kind is not Type.F16X2}
    lacking = {kind for kind, reason in reasons.items() if reason}
    # All types are converted to bf16 and back.
    assert lacking == (set(reasons) if arch == 75 else set())


@pytest.mark.parametrize(("kind", "operator"), [
    *((kind, operator) for kind in (Type.F16, Type.BF16, Type.F32, Type.F64)
      for operator in (Operator.ADD, Operator.MUL, Operator.MIN, Operator.ABS)),
    (Type.F32, Operator.MOVE),
])  # fmt: skip
def test_what_sm_75_lacks(kind: Type, operator: Operator) -> None:
    x = local("x", kind)
    n = local("n", Type.U32)
    sources = (x,) if operator in {Operator.ABS, Operator.MOVE} else (x, x)
    body = [Load(n, site("IN1"), HERE), Convert(x, n, HERE), Operation(operator, x, sources, HERE)]
    more, save = saving([x])
    skip = skip_of(make_twins(kernel(LEFT, RIGHT, 75), sealed(draft([*body, *more, save]))))
    lacks = kind is Type.BF16 or (kind is Type.F16 and operator is Operator.MIN)
    assert (skip is not None) == lacks, skip
    if skip is not None:
        named = "cvt.rn.bf16.f32" if kind is Type.BF16 else "min.f16"
        assert named in skip.detail
        assert "needs sm_80, the kernel is for sm_75" in skip.detail


PRODUCTS = """.version 8.0
.target sm_{arch}
.address_size 64
.visible .entry k(.param .u64 left, .param .u64 right, .param .u64 out)
{{
    .reg .b64 %a, %b, %c;
    .reg .b32 %t;
    .reg .{kind} %x, %y, %z;
    ld.param.u64 %a, [left];
    ld.param.u64 %b, [right];
    ld.param.u64 %c, [out];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %a, %t, {size}, %a;
    mad.wide.u32 %b, %t, {size}, %b;
    mad.wide.u32 %c, %t, {size}, %c;
    ld.global.{move} %x, [%a];
    ld.global.{move} %y, [%b];
    mul.{kind} %z, %x, %y;
    add.{kind} %z, %z, %x;
    st.global.{move} [%c], %z;
    ret;
}}
"""


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("kind", [Type.F32, Type.F64])
@pytest.mark.parametrize("position", ["mul", "add", "ld.global"])
def test_arithmetic_never_fuses_with_the_programs(arch: int, kind: Type, position: str, ptxas: object) -> None:
    """Beside a product and a sum that ptxas fuses: that stays fused, the probe's own stay apart and are counted."""
    size = kind.bits // 8
    text = PRODUCTS.format(arch=arch, kind=kind, size=size, move=kind)
    place = Kernel("products", text, "k", (1, 1, 1), (32, 1, 1), ())
    x, product, total, less = (local(name, kind) for name in ("x", "product", "total", "less"))
    x = local("x", kind)
    body: list[Statement] = [
        Load(x, SiteOperand("OUT"), HERE),
        Operation(Operator.MUL, product, (x, x), HERE),
        Operation(Operator.ADD, total, (product, x), HERE),
        Operation(Operator.SUB, less, (total, product), HERE),
    ]
    more, save = saving([product, total, less])
    twins = make_twins(place, sealed(draft([*body, *more, save], position, after=True)))
    assert skip_of(twins) is None
    (twin,) = twins.kernels
    letter = "F" if kind is Type.F32 else "D"
    sites = 2 if position == "ld.global" else 1
    own = {mnemonic: count for mnemonic, count in twin.own_arithmetic.items() if mnemonic.startswith(letter)}
    # At a product its own copy is one more, which probes read.
    copies = position == "mul"
    assert own == {f"{letter}MUL": sites + copies, f"{letter}ADD": 2 * sites}
    assert arithmetic_differs(text, twin, twins.render()) == ""
