"""Twins whose text says what is fused: judged by what their machine code computes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from neutrino.abi.reasons import Reason
from neutrino.backend.ptx_explicit_fma import (
    ArithmeticText,
    ExplicitTwins,
    Fusions,
    LineArithmetic,
    guess,
    prove,
    unlike_originals,
    write_explicit,
)
from neutrino.errors import ToolMissingError
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.ptx.analysis.contraction import loose_sums
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import compare, count_arithmetic
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.lines import SECTION
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probe_file, load_probes
from tests.maker.sass_values import expressions

READS = """
[map.Records]
type = "array"
level = "thread"
size = 4
cap = 64
data = { value = "u32" }
[map.Counts]
type = "sum"
level = "thread"
size = 8
data = { count = "u64" }
[probe.products]
position = "mul|div"
level = "thread"
after = "SAVE [ Records ] { OUT.bits };"
[probe.sums]
position = "add.f32|sub.f32"
level = "thread"
before = "SAVE [ Records ] { IN1.bits };"
[probe.all]
position = "*"
level = "thread"
before = "SAVE [ Counts ] { 1 };"
"""
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
OUT = 0x3000
"""Where the program stores, to distinguish the probe's own stores."""


@pytest.fixture(scope="module", autouse=True)
def _tools():
    try:
        find_tool("nvdisasm")
    except ToolMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def reads(tmp_path_factory):
    path = tmp_path_factory.mktemp("probes") / "reads.toml"
    path.write_text(READS)
    return load_probe_file(path)


def kernel(code: str, name: str = "k") -> str:
    return f"""
.visible .entry {name}(.param .u64 p)
{{
.reg .f32 %f<40>; .reg .f32 %o<4>; .reg .u64 %a; .reg .b32 %r<4>; .reg .pred %p<3>;
ld.param.u64 %a, [p]; ld.global.u32 %r1, [%a+512]; setp.ne.u32 %p1, %r1, 7;
{code}
ret;
}}
"""


class Module:
    """A text with its twins, and what the assembler makes of them."""

    def __init__(self, text: str, probes, assembler) -> None:
        self.text, self.assembler = text, assembler
        self.twins = probe_module(parse(text), probes)
        self.original = self.assemble(text, ())

    def render(self, twin) -> str:
        return replace(self.twins, kernels=(twin,)).render()

    def assemble(self, text, options):
        return self.assembler.assemble(text, "sm_90a", options)

    def proved(self, change) -> ExplicitTwins:
        """With what is guessed, and seen, changed by a function of both."""
        found = ArithmeticText.read(self.text)
        lines = self.assemble(found.apart(), ("-lineinfo",))
        seen, fusions = change(found, LineArithmetic.read(found, lines.cubin, "sm_90a"))
        twins, originals = self.twins.kernels, (self.original, lines)
        return prove(twins, found, seen, fusions, originals, self.assemble, self.render, "sm_90a")


def pin(text: str, probes, assembler) -> tuple[ExplicitTwins, dict[str, bytes]]:
    """The twins of a module with explicit FMA, and the machine code of the originals and of the twins."""
    module = Module(text, probes, assembler)
    made = write_explicit(
        module.twins.kernels, text, module.original, module.assemble, module.render, "sm_90a"
    )
    codes = {"": module.original.cubin}
    codes |= {name: module.assemble(module.render(twin), ()).cubin for name, twin in made.twins.items()}
    return made, codes


SINGLE = ("mul.f32", "add.f32", "sub.f32", "neg.f32", "div.full.f32", "fma.rn.f32", "mov.f32")
PAIRS = [(f"mul{flush}.f32", f"{total}{flush}.f32") for flush in ("", "", ".ftz") for total in ("add", "sub")]


@st.composite
def programs(draw) -> str:
    """Arithmetic on what was loaded and computed before, of which the last three are stored; registers are reused."""
    lines = [f"ld.global.f32 %f{number}, [%a+{8 * number}];" for number in range(4)]
    last = 3
    for _ in range(draw(st.integers(2, 5))):
        known = [f"%f{number}" for number in range(max(0, last - 4), last + 1)]
        first, second, third = (draw(st.sampled_from(known)) for _ in range(3))
        if draw(st.booleans()):
            name = draw(st.sampled_from(SINGLE))
            count = {"neg": 1, "mov": 1, "fma": 3}.get(name.partition(".")[0], 2)
            lines.append(f"{name} %f{last + 1}, {', '.join((first, second, third)[:count])};")
            last += 1
            continue
        product, total = draw(st.sampled_from(PAIRS))
        factor = draw(st.sampled_from([first, first, f"%f{last + 1}"]))
        lines += [f"mov.f32 %f{last + 1}, {first};", f"{product} %f{last + 1}, {factor}, {second};"]
        lines += draw(st.sampled_from([[], [f"mov.f32 {second}, {third};"]]))
        terms = draw(st.permutations([f"%f{last + 1}", third]))
        lines.append(f"{total} %f{last + 2}, {', '.join(terms)};")
        last += 2
    return "\n".join([*lines, *(f"st.global.f32 [%a+{OUT + 8 * number}], %f{last - number};" for number in (0, 2, 3))])


def stored(values: dict[int, object]) -> dict[int, object]:
    return {offset: value for offset, value in values.items() if OUT <= offset < OUT + 64}


def test_random_programs_compute_the_same(reads, assembler, tmp_path):
    pinned: list[int] = []

    @given(st.lists(programs(), min_size=7, max_size=7))
    @settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
    def judge(codes):
        text = HEAD + "".join(kernel(code, f"k{number}") for number, code in enumerate(codes))
        made, built = pin(text, reads, assembler)
        before = expressions(built[""], tmp_path)
        for name, twin in made.twins.items():
            after = expressions(built[name], tmp_path)[twin.twin_name]
            assert stored(after) == stored(before[name]), (codes[int(name[1:])], stored(after), stored(before[name]))
            assert len(stored(after)) == 3
            pinned.append(len(re.findall(r"fma\.rn[\w.]* %f\d+, %pinned", twin.probed_text)))
        assert made.twins.keys() | made.refused.keys() == {f"k{number}" for number in range(7)}

    judge()
    assert len(pinned) >= 10
    assert sum(map(bool, pinned)) >= 5


UNROLLED = """
mov.u32 %r2, 0; mov.f32 %f5, 0f00000000; mov.f32 %f6, 0f3F800000; ld.global.f32 %f9, [%a+64];
LOOP:
ld.global.f32 %f1, [%a]; ld.global.f32 %f2, [%a+4];
{product}
{sum}
add.f32 %f6, %f6, %f1;
add.u64 %a, %a, 8; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 8;
@%p2 bra LOOP;
st.global.f32 [%a+12288], %f5; st.global.f32 [%a+12296], %f6;
"""
LOOPS = {
    "add": ("mul.f32 %f3, %f1, %f2;", "add.f32 %f5, %f3, %f5;"),
    "sub": ("mul.f32 %f3, %f1, %f2;", "sub.f32 %f5, %f5, %f3;"),
    "negated": ("mul.f32 %f3, %f1, %f2;", "sub.f32 %f5, %f3, %f9;"),
    "number": ("mul.f32 %f3, %f1, %f9;", "sub.f32 %f4, %f3, 0f3F800000; fma.rn.f32 %f5, %f4, %f1, %f5;"),
    "flushed": ("mul.ftz.f32 %f3, %f1, %f2;", "add.ftz.f32 %f5, %f3, %f5;"),
    "overwritten": ("mul.f32 %f3, %f1, %f2; mov.f32 %f1, %f9;", "add.f32 %f5, %f3, %f5;"),
    "apart": ("mul.f32 %f3, %f1, %f2; st.global.f32 [%a+8192], %f3;", "add.f32 %f5, %f3, %f5;"),
    "under a predicate": ("mul.f32 %f3, %f1, %f2;", "@%p1 add.f32 %f5, %f3, %f5;"),
    "two": ("mul.f32 %f3, %f1, %f2; mul.f32 %f4, %f1, %f9;", "add.f32 %f7, %f3, %f4; add.rn.f32 %f5, %f5, %f7;"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_keep_their_fusions(name, reads, assembler):
    """ptxas unrolls the original's loop and not the twin's: numbers differ, and what each copy computes does not."""
    product, total = LOOPS[name]
    text = HEAD + kernel(UNROLLED.format(product=product, sum=total))
    selection = Selection((), ())
    data = patch_image(text.encode() + b"\0", reads, "sm_90a", selection=selection, assembler=assembler, key=bytes(32))
    (made,) = read_entry(data, name).kernels
    assert made.reason is Reason.PROBED, made.detail
    numerics = json.loads(made.files["manifest.json"])["numerics"]
    fused = name != "apart"
    assert numerics["proof"] == "pinned"
    assert not fused or compare(numerics["original"], numerics["twin"], numerics["own"]) is not None
    assert (numerics["original"].get("FFMA", 0) > 0) == (numerics["twin"].get("FFMA", 0) > 0) == fused
    text_of_twin = made.files["probed.ptx"].decode()
    assert not re.search(r"\bmul(?:\.ftz)?\.f32", text_of_twin)
    assert bool(re.search(r"fma\.rn[\w.]* %f\d+, %pinned", text_of_twin)) == fused


DIVIDED = UNROLLED.format(product="div.full.f32 %f3, %f1, %f2;", sum="sub.f32 %f5, %f5, %f3;")
COUNTS = """
[map.Counts]
type = "sum"
level = "thread"
size = 8
data = { count = "u64" }
[probe.all]
position = "add.u32"
level = "thread"
lanes = "reaching"
before = '''
.reg .u32 %n; .reg .u64 %m;
activemask.b32 %n;
popc.b32 %n, %n;
cvt.u64.u32 %m, %n;
SAVE [ Counts ] { %m };
'''
"""


def test_divisions_are_compared_by_lines(reads, assembler, tmp_path):
    text = HEAD + kernel(DIVIDED)
    (tmp_path / "counts.toml").write_text(COUNTS)
    made, built = pin(text, load_probe_file(tmp_path / "counts.toml"), assembler)
    assert made.refused == {}
    code = read_cubin(built["k"], "twin").kernels["k__neutrino"].code
    assert count_arithmetic(made.codes["k"], "sm_90a") == count_arithmetic(code, "sm_90a")
    # A probe that reads the quotient divides once more: the program's own is fused as before.
    made, built = pin(text, reads, assembler)
    assert made.refused == {}
    code = read_cubin(built["k"], "twin").kernels["k__neutrino"].code
    assert count_arithmetic(made.codes["k"], "sm_90a")["FFMA"] == count_arithmetic(code, "sm_90a")["FFMA"]


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "apart"])
def test_a_wrong_guess_is_refused(name, reads, assembler):
    """Each sum that is fused is taken for one that is not."""

    def wrong(found, seen):
        fusions = guess(found, seen)
        assert any(fusions.fused.values())
        return seen, Fusions({function: {} for function in fusions.fused}, fusions.mixed)

    product, total = LOOPS[name]
    made = Module(HEAD + kernel(UNROLLED.format(product=product, sum=total)), reads, assembler).proved(wrong)
    assert made.twins == {}
    assert "differ from those of its text" in made.refused["k"]


def test_what_is_fused_in_some_copies_only_is_refused(reads, assembler):
    def mixed(found, seen):
        more = {key: names | {"FADD"} if "FFMA" in names else names for key, names in seen.mnemonics.items()}
        seen = replace(seen, mnemonics=more)
        return seen, guess(found, seen)

    text = HEAD + kernel(UNROLLED.format(product=LOOPS["add"][0], sum=LOOPS["add"][1]))
    made = Module(text, reads, assembler).proved(mixed)
    assert re.search(r"line \d+: add\.f32 is fused in only some of its copies", made.refused["k"])


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "fixtures" / "kernels").glob("*/*.ptx"))[::4],
                         ids=lambda path: path.name)  # fmt: skip
def test_line_information_changes_no_code(path, assembler):
    text = path.read_bytes().decode("latin-1")
    target = re.search(r"^\.target\s+(sm_\w+)", text, re.MULTILINE)[1]
    plain, lines = (
        read_cubin(assembler.assemble(text, target, options).cubin, "x").kernels for options in ((), ("-lineinfo",))
    )
    assert {name: built.code for name, built in plain.items()} == {name: built.code for name, built in lines.items()}


EQUAL = """
ld.global.f32 %f5, [%a+4]; ld.global.f32 %f6, [%a+12]; mov.u32 %r2, 0;
LOOP:
ld.global.f32 %f1, [%a+16]; ld.global.f32 %f2, [%a+20];
div.approx.f32 %f3, %f1, %f2;
sub.f32 %f7, %f5, %f3;
mul.f32 %f4, %f6, %f1;
add.f32 %f6, %f7, %f4;
mul.f32 %f5, %f7, %f1;
add.u64 %a, %a, 8; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r1;
@%p2 bra LOOP;
st.global.f32 [%a+12288], %f5; st.global.f32 [%a+12296], %f6;
"""
"""The difference may be fused with the division, or with the product of the turn before."""
CHOICES = {
    "one or the other": ("mul.f32 %f3, %f1, %f2; mul.f32 %f4, %f1, %f9; add.f32 %f5, %f3, %f4;", 1),
    "copies": (
        "mul.f32 %f3, %f1, %f2; mov.f32 %f4, %f3; mul.f32 %f7, %f2, %f9; neg.f32 %f8, %f7; sub.f32 %f5, %f4, %f8;", 1
    ),
    "selected": (
        "mul.f32 %f3, %f1, %f2; selp.f32 %f4, %f3, %f9, %p1; div.full.f32 %f7, %f1, %f9; add.f32 %f5, %f7, %f4;", 1
    ),
    "of the turn before": (
        "AGAIN: mul.f32 %f3, %f1, %f2; sub.f32 %f5, %f3, %f4; mul.f32 %f4, %f5, %f1; @%p1 bra AGAIN;", 1
    ),
    "one twice": ("mul.f32 %f3, %f1, %f2; add.f32 %f5, %f3, %f3;", 0),
    "one": ("mul.f32 %f3, %f1, %f2; add.f32 %f5, %f3, %f9; add.f32 %f5, %f5, %f1;", 0),
    "rounded": ("mul.rn.f32 %f3, %f1, %f2; mul.f32 %f4, %f1, %f9; add.f32 %f5, %f3, %f4;", 0),
    "computed": ("mul.f32 %f3, %f1, %f2; fma.rn.f32 %f4, %f3, %f1, %f2; add.f32 %f5, %f3, %f4;", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_sums_of_two_products_are_known(name):
    code, count = CHOICES[name]
    module = parse(HEAD + kernel(code))
    found = loose_sums(Body(module.code, *module.entries[0].body))
    assert [module.code[position : position + 3] in {"add", "sub"} for position in found] == [True] * count


@pytest.mark.parametrize("text", [EQUAL, f"ld.global.f32 %f1, [%a]; ld.global.f32 %f2, [%a+4]; "
                                  f"{CHOICES['one or the other'][0]} st.global.f32 [%a+8], %f5;"])  # fmt: skip
def test_equal_numbers_are_no_proof_where_one_of_two_products_is_fused(text, assembler, tmp_path):
    """Some copies of an unrolled loop fuse the one, some the other; a twin may fuse as many, and others."""
    (tmp_path / "adds.toml").write_text(COUNTS)
    probes = load_probe_file(tmp_path / "adds.toml") if "LOOP" in text else load_probes(["inst_count"])
    image = (HEAD + kernel(text)).encode() + b"\0"
    selection = Selection((), ())
    (made,) = read_entry(
        patch_image(image, probes, "sm_90a", selection=selection, assembler=assembler, key=bytes(32)), "entry"
    ).kernels
    if made.reason is Reason.PROBED:
        assert json.loads(made.files["manifest.json"])["numerics"]["proof"] in {"pinned", "lines"}
    else:
        assert made.reason is Reason.NUMERICS, made.detail
        assert re.search(r"with which product '(add|sub)\.f32 .*' is fused|→", made.detail)
    assert made.reason is Reason.PROBED or "LOOP" in text


def test_code_of_another_assembler_does_not_say_which_product_is_fused(assembler):
    """Of machine code that this assembler does not make of the text, only equal numbers are known."""
    text = HEAD + kernel(f"ld.global.f32 %f1, [%a]; {CHOICES['one or the other'][0]} st.global.f32 [%a+8], %f5;")
    module, probes = parse(text), load_probes(["inst_count"])
    (twin,) = probe_module(module, probes).kernels
    assert twin.loose == "add.f32 %f5, %f3, %f4"
    shipped = assembler.assemble(text.replace("[%a+8]", "[%a+16]"), "sm_90a")

    machine = read_cubin(shipped.cubin, "shipped")
    original = assembler.assemble(text, "sm_90a")
    assert "the instructions of the code that runs" in unlike_originals([twin], machine, original, "ptxas")["k"]
    machine = read_cubin(original.cubin, "shipped")
    assert unlike_originals([twin], machine, original, "ptxas") == {}
    assert unlike_originals([twin], None, original, "ptxas") == {}


class OtherLines(Assembler):
    """Writes line information with another version of its form."""

    def assemble(self, text, arch, options=(), **more):
        made = super().assemble(text, arch, options, **more)
        if "-lineinfo" not in options:
            return made
        section = open_cubin(made.cubin, "lines").section(SECTION)
        version = section.offset + 4  # unit_length comes first
        return replace(made, cubin=made.cubin[:version] + b"\5\0" + made.cubin[version + 2 :])


def test_line_information_of_another_form_leaves_the_original(reads, assembler):
    text = HEAD + kernel(UNROLLED.format(product=LOOPS["add"][0], sum=LOOPS["add"][1]))
    other = OtherLines(assembler.path, assembler.version, assembler.identity)
    data = patch_image(text.encode() + b"\0", reads, "sm_90a", selection=Selection(), assembler=other, key=bytes(32))
    (made,) = read_entry(data, "entry").kernels
    # The probe that reads the products is left out, and the others go in.
    assert made.reason is Reason.PROBED
    assert "probe 'products' is left out" in made.detail
    assert re.search(r"FFMA \d+ → \d+.*; .*version", made.detail)
