"""Right probe files: what they mean, the slips that are taken with a warning, and positions against tomllib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.levels import Level
from neutrino.abi.records import lay_out_fields, record_dtype
from neutrino.abi.scalars import ScalarType
from neutrino.backend.ptx_target import PtxTarget
from neutrino.errors import NeutrinoError, ProbeError, Span
from neutrino.ir.operands import SiteOperand
from neutrino.ir.statements import Assembly
from neutrino.maps.registry import ARRAY
from neutrino.probing.ir.structured import Save
from neutrino.probing.model import Pattern, Subject, Tracepoint
from neutrino.probing.toml_positions import find_places
from neutrino.probing.written import WrittenInstruction
from neutrino.ptx.snippets.writer import assembly_text
from neutrino.resources import shipped_probes
from neutrino.twins.able import able_probes
from neutrino.verification import check_probes, load_probe_file, load_probes
from tests.fronts import is_matched, read_probe_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DRAFTS = Path(__file__).parents[1] / "fixtures" / "probes"
DOCUMENTED = '''platform = "cuda"
[ map.BlockSched ] # sub of "map"
type = "array"
level = "warp"
size = 16
cap = 1
data = { "start": "u64", "elapsed": "u32", "cuid": "u32" }
[ probe.thread_start_thread_end ] # sub of "probe"
position = "kernel"
level = "warp"
register = {"u32": 2, "u64": 3}
before = """.reg .b64 %PD<3>;
.reg .b32 %P<2>;
mov.u64 %PD0, %clock64;"""
after = """mov.u64 %PD1, %clock64;
sub.u64 %PD1, %PD1, %PD0;
cvt.u32.u64 %P1, %PD1;
mov.u32 %P2, %smid;
SAVE [ BlockSched ] {%PD0, %P1, %P2};"""
'''
"""The example of the documents, word for word, with its slips."""


def load(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "probe.toml"
    path.write_text(text)
    return load_probe_file(path)


def test_the_documented_example_loads_with_its_slips_named(tmp_path: Path) -> None:
    probes = load(tmp_path, DOCUMENTED)
    (probe,) = probes.probes
    (entry,) = probes.maps
    assert (entry.size, entry.level, entry.kind, entry.cap) == (16, Level.WARP, ARRAY, 1)
    assert [register.name for register in probes.registers] == ["%PD0", "%PD1", "%PD2", "%P0", "%P1", "%P2"]
    assert probe.tracepoint.is_kernel
    assert probe.before is not None
    assert [(assembly_text(statement), statement.span) for statement in probe.before.straight] == [
        ("mov.u64 %PD0, %clock64", Span(14, 1))
    ]
    assert probe.after is not None
    registers = {register.name: register for register in probes.registers}
    saved = tuple(registers[name] for name in ("%PD0", "%P1", "%P2"))
    assert probe.after.statements[-1] == Save(entry, saved, Span(19, 1))
    assert probe.after.statements[-1].span == Span(19, 1)
    assert [f"{warning.message}; hint: {warning.hint}" for warning in probes.warnings] == [
        "':' in an inline table, read as '='; hint: TOML writes { start = \"u64\" }",
        "%P<2> does not declare %P2, which is used; it is added; hint: write %P<3>",
    ]


def test_special_registers_inside_save_are_read_first(tmp_path: Path) -> None:
    text = DOCUMENTED.replace("mov.u32 %P2, %smid;\n", "").replace("%P1, %P2}", "%P1, %smid}")
    probes = load(tmp_path, text.replace('"start": "u64"', '"start": "u64"').replace("{%PD0", "{%PD1"))
    after = probes.probes[0].after
    assert after is not None
    assert assembly_text(after.straight[-2]) == "mov.u32 %save_smid, %smid"  # type: ignore[arg-type]
    assert [operand.text for operand in after.straight[-1].operands] == ["%PD1", "%P1", "%save_smid"]
    assert any("%smid inside SAVE is read into a register first" in warning.message for warning in probes.warnings)


def test_a_narrow_special_register_widens_for_a_wide_field(tmp_path: Path) -> None:
    text = """[map.M]
level = "thread"
data = { where = "u64" }
[probe.p]
position = "kernel"
level = "thread"
before = "SAVE [ M ] { %smid };"
"""
    probes = load(tmp_path, text)
    (register,) = probes.registers
    assert (register.name, register.type) == ("%save_smid_u64", "u64")
    assert assembly_text(probes.probes[0].before.statements[0]) == "cvt.u64.u32 %save_smid_u64, %smid"


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (("size = 16", 'size = "16"'), 'size = "16" is read as a number'),
        (("position =", "pos ="), "'pos' is read as 'position'"),
        (("SAVE [ BlockSched ]", "SAVE [ block_sched ]"), "map 'block_sched' is read as 'BlockSched'"),
        (('platform = "cuda"', 'analyze_hook = "absent.py"'), 'analyze_hook "absent.py" is not there, and is not run'),
    ],
)
def test_other_slips(tmp_path: Path, change: tuple[str, str], warning: str) -> None:
    probes = load(tmp_path, DOCUMENTED.replace(*change))
    assert any(warning in found.message for found in probes.warnings)
    plain = load(tmp_path, DOCUMENTED)
    assert probes.maps[0].fields == plain.maps[0].fields
    assert len(probes.warnings) == len(plain.warnings) + 1


def test_padding_is_warned_about(tmp_path: Path) -> None:
    text = DOCUMENTED.replace('"start": "u64", "elapsed": "u32", "cuid": "u32"', 'a = "u32", start = "u64", c = "u32"')
    text = text.replace("size = 16", "size = 24").replace("{%PD0, %P1, %P2}", "{%P1, %PD0, %P2}")
    probes = load(tmp_path, text)
    assert any("8 of the 24 bytes of a record are padding" in warning.message for warning in probes.warnings)
    assert [field.offset for field in probes.maps[0].fields] == [0, 8, 16]


def test_unused_map_is_warned_about(tmp_path: Path) -> None:
    probes = load(tmp_path, DOCUMENTED + '[map.Idle]\nlevel = "warp"\ndata = { a = "u8" }\n')
    assert any("nothing is saved to map 'Idle'" in warning.message for warning in probes.warnings)


def test_statements_comments_and_lines(tmp_path: Path) -> None:
    text = '''[map.M]
level = "thread"
data = { a = "u64" }
[probe.p]
position = "ld.global"
level = "thread"
before = """
.reg .u64 %x, /* two; of them */ %y; // and a comment; with a semicolon
mov.u64   %x,
   ADDR; add.u64 %y, %x, BYTES;
SAVE [M]
{ %y };
"""
'''
    probes = load(tmp_path, text)
    assert [register.name for register in probes.registers] == ["%x", "%y"]
    assert probes.registers[1].span == Span(8, 34)
    before = probes.probes[0].before
    assert before is not None
    x, y = probes.registers
    address, size = SiteOperand("ADDR"), SiteOperand("BYTES")
    assert before.statements == (
        Assembly("ptx", "mov.u64", (x, address), Span(9, 1), writes=(x,)),
        Assembly("ptx", "add.u64", (y, x, size), Span(10, 10), writes=(y,)),
        Save(probes.maps[0], (y,), Span(11, 1)),
    )
    assert [statement.span for statement in before.statements] == [Span(9, 1), Span(10, 10), Span(11, 1)]


def test_digest_is_about_meaning(tmp_path: Path) -> None:
    plain = load(tmp_path, DOCUMENTED)
    moved = load(tmp_path, "# a comment\n" + DOCUMENTED.replace("sub.u64 %PD1, ", "sub.u64   %PD1,  "))
    other = load(tmp_path, DOCUMENTED.replace("%clock64", "%globaltimer"))
    assert plain.digest == moved.digest
    assert plain.digest != other.digest


def test_several_files_keep_their_registers_apart(tmp_path: Path) -> None:
    first = tmp_path / "first.toml"
    second = tmp_path / "second.toml"
    first.write_text(DOCUMENTED)
    second.write_text(DOCUMENTED.replace("BlockSched", "Other").replace("%clock64", "%globaltimer"))
    merged = load_probes([str(first), str(second), str(first)])
    assert [entry.name for entry in merged.maps] == ["BlockSched", "Other"]
    names = [register.name for register in merged.registers]
    assert len(names) == len(set(names)) == 12
    (_, probe) = merged.probes
    assert probe.before is not None
    assert assembly_text(probe.before.statements[0]) == "mov.u64 %PD0_2, %globaltimer"  # type: ignore[arg-type]
    assert probe.after is not None
    assert [operand.text for operand in probe.after.straight[-1].operands] == ["%PD0_2", "%P1_2", "%P2_2"]
    assert merged.parts[1].file == str(second)


@pytest.mark.parametrize("name", sorted(shipped_probes()))
def test_shipped_probes_are_sound_and_without_warnings(name: str) -> None:
    probes = load_probes([name])
    assert probes.warnings == ()


def test_shipped_probes_go_together() -> None:
    merged = load_probes(["block_sched", "gmem_bytes"])
    assert [entry.name for entry in merged.maps] == ["BlockSched", "GmemBytes"]


def counted(opcode: str) -> list[str]:
    """Names of the gmem_bytes probes that match an instruction."""
    parts = opcode.split(".")
    return [probe.name for probe in load_probes(["gmem_bytes"]).probes if is_matched(probe.tracepoint, parts)]


@pytest.mark.parametrize(
    ("opcode", "probes"),
    [
        ("ld.global.nc.v4.f32", ["load_global"]),
        ("ld.relaxed.gpu.global.L1::no_allocate.f32", ["load_global"]),
        ("ld.volatile.u32", ["load_generic"]),
        ("ld.param.u64", []),
        ("ld.shared.u32", []),
        ("ld.shared::cluster.u32", []),
        ("ld.param::func.u32", []),
        ("ldu.global.u32", ["load_global"]),
        ("st.u8", ["store_generic"]),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32", []),
        ("st.bulk.weak", []),
        ("atom.global.add.u32", ["atomic_global"]),
        ("atom.add.u32", ["atomic_generic"]),
        ("atom.shared.cas.b32", []),
        ("red.global.add.f32", ["atomic_global"]),
        # Without a state space its address may be global; a shared one adds nothing, as the address shows.
        ("red.async.relaxed.cluster.mbarrier::complete_tx::bytes.inc.u32", ["atomic_generic"]),
        ("cp.async.ca.shared.global", ["copy"]),
        ("cp.async.cg.shared.global.L2::128B", ["copy"]),
        ("cp.async.commit_group", []),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", ["bulk_copy"]),
        ("cp.async.bulk.global.shared::cta.bulk_group", ["bulk_copy"]),
        ("cp.async.bulk.global.shared::cta.bulk_group.cp_mask", ["uncounted_copy"]),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", []),
        ("cp.async.bulk.prefetch.L2.global", []),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile", []),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", ["uncounted_copy"]),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", ["uncounted_copy"]),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32", ["bulk_copy"]),
        ("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32", []),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", ["uncounted_copy"]),
        ("multimem.ld_reduce.relaxed.sys.global.add.f32", ["uncounted"]),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16", ["load_generic"]),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", []),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.f32", ["store_global"]),
        ("tex.2d.v4.f32.f32", ["uncounted"]),
        ("prefetch.global.L2", []),
    ],
)
def test_each_access_is_counted_once(opcode: str, probes: list[str]) -> None:
    assert counted(opcode) == probes


@pytest.mark.parametrize(
    ("pattern", "opcode", "matches"),
    [
        ("ld.global", "ld.global.nc.v4.f32", True),
        ("ld.global", "ld.volatile.global.u32", True),
        ("ld.global.nc", "ld.global.u32", False),
        ("ld.nc.global", "ld.global.nc.u32", False),
        ("ld", "ldu.global.u32", False),
        ("ld.shared", "ld.shared::cta.u32", True),
        ("ld.shared::cta", "ld.shared.u32", False),
        ("ld.shared::cta", "ld.shared::cta.u32", True),
        ("ld.generic", "ld.u32", True),
        ("ld.generic.u32", "ld.volatile.u32", True),
        ("ld.generic", "ld.const.u32", False),
        ("cp.async.bulk !tensor", "cp.async.bulk.tensor.2d", False),
        ("cp.async.bulk !tensor !prefetch", "cp.async.bulk.shared::cluster", True),
    ],
)
def test_patterns(pattern: str, opcode: str, matches: bool) -> None:
    word, *without = pattern.split()
    parsed = Pattern(Subject.OPCODE, tuple(word.split(".")), without=tuple(item[1:] for item in without))
    assert is_matched(Tracepoint(pattern, (parsed,)), opcode.split(".")) is matches


def test_files_for_two_platforms_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "cuda.toml").write_text(DOCUMENTED)
    hip = (DRAFTS / "guide_hip.toml").read_text().replace("BlockSched", "Other").replace("block_sched", "other")
    (tmp_path / "hip.toml").write_text(hip)
    with pytest.raises(ProbeError, match=r'hip\.toml:1:12: error: platform is "hip", that of .*cuda\.toml is "cuda"'):
        load_probes([str(tmp_path / "cuda.toml"), str(tmp_path / "hip.toml")])


def test_a_file_for_amd_is_not_for_nvidias_kernels() -> None:
    assert check_probes([str(DRAFTS / "guide_hip.toml")]).is_valid
    probes = load_probe_file(DRAFTS / "guide_hip.toml")
    assert (probes.platform, probes.target) == ("hip", "gcn")
    with pytest.raises(NeutrinoError, match=r"its assembly is gcn, and these kernels take ptx"):
        able_probes(PtxTarget(), probes)


def test_assembly_of_amd_is_kept() -> None:
    text = '''platform = "hip"
[map.M]
level = "warp"
data = { a = "u32" }
[probe.p]
position = "kernel"
level = "warp"
register = { u32 = 1, "type" = "vgpr" }
before = """
s_memtime   PD0 ; with a comment
// and one more; SAVE [ M ] { 1 }
SAVE [m] {P0}; v_mov_b32 /* not here */ P0, 0
"""
'''
    probes = read_probe_text("p.toml", text)
    before = probes.probes[0].before
    assert before is not None
    assert [statement.span for statement in before.statements] == [Span(10, 1), Span(12, 1)]
    assert before.statements[0] == WrittenInstruction("s_memtime PD0", Span(10, 1))
    assert before.statements[1].operands == ("P0",)  # type: ignore[union-attr]
    wrong = text.replace('"vgpr"', '"agpr"').replace("{P0}", "{P0, P1}").replace("u32 = 1", "u31 = 1")
    with pytest.raises(ProbeError) as caught:
        read_probe_text("p.toml", wrong)
    codes = [fault.code for fault in caught.value.diagnostics]
    assert codes == ["unknown-key", "register-note", "save-operands", "map-spelling"]


def test_reading_a_probe_file_imports_no_numpy() -> None:
    script = (
        "import sys; from neutrino.verification import load_probes; load_probes(['block_sched']);"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(list(ScalarType)), min_size=1, max_size=8))
def test_fields_lie_as_in_c(types: list[ScalarType]) -> None:
    """NumPy's aligned structures follow the C rules and are the judge."""
    import numpy as np

    placed, size, padding = lay_out_fields([(f"f{index}", scalar) for index, scalar in enumerate(types)])
    ours = record_dtype(placed, size)
    judge = np.dtype(
        {"names": list(ours.names or ()), "formats": [ours[name] for name in ours.names or ()]}, align=True
    )
    assert ours.fields == judge.fields
    assert ours.itemsize == judge.itemsize == padding + sum(scalar.size for scalar in types)


# Places

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0\x7f", exclude_categories=("Cc", "Cs")), max_size=12
)
KEY = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)


def basic(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("é", "\\u00e9") + '"'


def multi(text: str) -> str:
    return '"""\n' + text.replace("\\", "\\\\").replace('"', '\\"').replace(" ", " \\\n   ") + '"""'


def literal(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def multi_literal(text: str) -> str:
    return "'''" + text.replace("'", "") + "\nx'''"


STRINGS = st.builds(lambda form, text: form(text), st.sampled_from([basic, multi, literal, multi_literal]), TEXT)
VALUES = st.recursive(
    STRINGS | st.sampled_from(["1", "-2.5e3", "true", "1979-05-27 07:32:00", "0xff"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[ " + ", # c ]\n ".join(items) + " ]")
        | st.dictionaries(KEY, inner, max_size=3).map(
            lambda items: "{ " + ", ".join(f"{key} = {value}" for key, value in items.items()) + " }"
        )
    ),
    max_leaves=5,
)


def strings_of(document: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    if isinstance(document, str):
        found[path] = document
    for key, value in items:
        found |= strings_of(value, (*path, str(key)))
    return found


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(KEY, VALUES, max_size=3),
    st.dictionaries(KEY, st.dictionaries(KEY, VALUES, max_size=3), max_size=3),
)
def test_places_agree_with_tomllib(top: dict[str, str], tables: dict[str, dict[str, str]]) -> None:
    """Every text that tomllib reads is found, and each of its characters stands where the place says."""
    source = "".join(f"{key} = {value} # comment\n" for key, value in top.items())
    for table, pairs in tables.items():
        source += f"[ t_.{table} ]\n" + "".join(f"\t{key}={value}\n" for key, value in pairs.items())
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        # Inline tables may not hold line ends, and keys may clash.
        return
    places = find_places(source)
    for path, text in strings_of(document).items():
        place = places[path]
        assert len(place.characters) == len(text) + 1
        for offset, character in zip(place.characters, text, strict=False):
            assert source[offset] in {character, "\\"}
        assert source[place.characters[-1]] in "'\""
    for table in tables:
        assert source.startswith(f"t_.{table} ]", places["t_", table].key)
