"""Which PTX instructions become which machine instructions, group by group, so that executions of both can be compared.

The probe that counts the PTX side is made from the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from neutrino.probing.model import Tracepoint
from neutrino.ptx.isa.opcodes import find
from neutrino.verification import read_probes

_FLOATS = ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2")
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_NO_FLOATS = " ".join(f"!{kind}" for kind in _FLOATS)
_SUMS = ("add", "sub", "mul", "fma", "mad")
_FUNCTIONS = ("rcp", "rsqrt", "sqrt", "sin", "cos", "lg2", "ex2", "tanh")


@dataclass(frozen=True)
class Group:
    """One row. position: of PTX instructions, as in a probe. machine: opcodes without what follows the first dot.

    also: other groups that become such machine instructions, and how many each. exact: the two sides are the same
    number wherever ``unless`` says nothing. merges: of equal or neighbouring instructions ptxas makes one, so that the
    machine's may be fewer. unless: PTX groups that are computed by such machine instructions, too; where a kernel
    executes none of them the group is exact. why: where the difference comes from.
    """

    name: str
    position: str
    machine: tuple[str, ...] = ()
    also: tuple[tuple[str, int], ...] = ()
    exact: bool = False
    merges: bool = False
    unless: tuple[str, ...] = ()
    why: str = ""


def _each(opcodes: tuple[str, ...], *kinds: str) -> str:
    return " | ".join(f"{opcode}.{kind}" for opcode in opcodes for kind in kinds)


_BY_PREDICATE = "short branches become predicates, loops are unrolled and merged"
_ADDRESSES = "addresses are computed once, folded into accesses, or moved to the uniform unit"
_EXPANDED = "become a function of the special unit, sums and products"
_CONSTANTS = "parameters and constants are operands of the instructions that use them, or loaded once"

GROUPS = (
    Group("load_global", "ld.global | ldu.global", ("LDG",), exact=True),
    Group("load_generic", "ld.generic | ldu.generic", ("LD",), exact=True),
    Group("load_shared", "ld.shared", ("LDS",), exact=True, merges=True,
          why="neighbouring loads become one of 64 or 128 bits: the bytes are the same"),
    Group("load_local", "ld.local", ("LDL",), exact=True),
    Group("load_constant", "ld.param | ld.const", ("LDC", "ULDC"), why=_CONSTANTS),
    Group("store_global", "st.global !bulk", ("STG",), exact=True),
    Group("store_generic", "st.generic !bulk", ("ST",), exact=True),
    Group("store_shared", "st.shared !async !bulk", ("STS",), exact=True),
    Group("store_local", "st.local", ("STL",), exact=True),
    Group("atomic_global", "atom.global | red.global | atom.generic | red.generic", ("ATOM", "ATOMG", "RED", "REDG"),
          exact=True),
    Group("atomic_shared", "atom.shared | red.shared !async", ("ATOMS",), exact=True),
    Group("copy", "cp.async.ca | cp.async.cg", ("LDGSTS",), exact=True),
    Group("bulk_copy", "cp.async.bulk.global.shared | cp.async.bulk.shared.global | cp.async.bulk.tensor !prefetch",
          ("UBLKCP", "UTMALDG", "UTMASTG"), exact=True),
    Group("load_matrix", "ldmatrix", ("LDSM",), exact=True),
    Group("store_matrix", "stmatrix", ("STSM",), exact=True),
    Group("mma", "mma", ("HMMA", "IMMA", "DMMA", "BMMA"), also=(("wmma", 2),), exact=True),
    Group("wmma", "wmma.mma", why="two machine instructions each, which stand beside mma"),
    Group("wgmma", "wgmma.mma_async", ("HGMMA", "IGMMA", "QGMMA", "BGMMA"), exact=True),
    Group("shuffle", "shfl", ("SHFL",), exact=True, merges=True, why="the same shuffle of the same value is done once"),
    Group("barrier", "bar !warp | barrier.sync | barrier.arrive !cluster | barrier.red", ("BAR",), exact=True),
    Group("end", "ret | exit", ("EXIT",), exact=True),
    Group("single", _each(_SUMS, "f32"), ("FADD", "FMUL", "FFMA"), exact=True,
          unless=("divide_single", "root_single", "function", "convert"),
          why="divisions, roots and functions are computed by these, too"),
    Group("double", _each(_SUMS, "f64"), ("DADD", "DMUL", "DFMA"), exact=True, unless=("divide_double", "root_double"),
          why="divisions and roots are computed by these, too"),
    Group("half", _each(_SUMS, *_HALVES), ("HADD2", "HMUL2", "HFMA2"), exact=True, unless=("convert",),
          why="conversions are made with these, too"),
    Group("extremum", _each(("min", "max"), "f32"), ("FMNMX",), exact=True),
    Group("function", " | ".join(f"{opcode} !f64 !rn" for opcode in _FUNCTIONS), ("MUFU",), exact=True,
          unless=("divide_single", "divide_double", "root_single", "root_double", "divide_integer"),
          why="divisions and roots begin with one"),
    Group("divide_single", "div.f32", why=_EXPANDED),
    Group("root_single", "sqrt.rn.f32 | rcp.rn.f32", why=_EXPANDED),
    Group("divide_double", "div.f64 | rcp.f64", why=_EXPANDED),
    Group("root_double", "sqrt.f64 | rsqrt.f64", why=_EXPANDED),
    Group("divide_integer", f"div {_NO_FLOATS} | rem", why=_EXPANDED),
    Group("branch", "bra | brx", ("BRA", "BRX", "BSSY", "BSYNC", "BREAK", "WARPSYNC"), why=_BY_PREDICATE),
    Group("call", "call", ("CALL", "RET"), why="small functions are inlined"),
    Group("compare", "setp | set", ("ISETP", "FSETP", "DSETP", "HSETP2", "PLOP3", "UISETP", "FSET"), why=_BY_PREDICATE),
    Group("select", "selp | slct", ("SEL", "FSEL", "USEL"), why=_BY_PREDICATE),
    Group("move", "mov", ("MOV", "UMOV", "S2R", "S2UR", "CS2R", "R2UR", "R2P", "P2R"),
          why="registers are named anew, packing vanishes, constants and special registers are read where needed"),
    Group("convert", "cvt", ("F2F", "F2I", "I2F", "I2FP", "F2FP", "FRND", "I2I", "F2IP"),
          why="those between integers are made by shifts and masks, or vanish"),
    Group("address", "cvta", (), why=_ADDRESSES),
    Group("integer", " | ".join([
              *(f"{opcode} {_NO_FLOATS}" for opcode in ("add", "sub", "mul", "mad", "min", "max", "abs", "neg")),
              "addc", "subc", "madc", "sad", "mul24", "mad24", "popc", "clz", "bfind", "dp4a", "dp2a"]),
          ("IADD3", "IMAD", "LEA", "IABS", "VIMNMX", "IMNMX", "UIADD3", "UIMAD", "ULEA", "POPC", "FLO", "VIADD", "IDP",
           "UPOPC", "UFLO", "VIADDMNMX"), why=_ADDRESSES),
    Group("logic", "and | or | xor | not | cnot | lop3 | shf | shl | shr | bfe | bfi | brev | prmt | bmsk | szext",
          ("LOP3", "SHF", "SGXT", "PRMT", "BREV", "ULOP3", "USHF", "UPRMT", "BMSK", "USGXT", "UBREV"),
          why="several become one of three inputs, shifts are folded into additions"),
    Group("sign", _each(("abs", "neg"), *_FLOATS), (), why="operands have signs"),
    Group("vote", "vote | match | redux | activemask", ("VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX"),
          why="votes of the uniform unit"),
    Group("wait", "membar | fence | mbarrier | cp.async.commit_group | cp.async.wait_group | cp.async.wait_all | "
          "cp.async.bulk.commit_group | cp.async.bulk.wait_group | wgmma.fence | wgmma.commit_group | "
          "wgmma.wait_group | bar.warp | barrier.cluster | griddepcontrol | cp.async.mbarrier.arrive | "
          "setmaxnreg | elect | nanosleep",
          ("MEMBAR", "FENCE", "SYNCS", "LDGDEPBAR", "DEPBAR", "UTMACMDFLUSH", "WARPGROUP", "UCGABAR_ARV",
           "UCGABAR_WAIT", "ELECT", "ERRBAR", "CCTL", "ACQBULK", "ARRIVES", "UTMACCTL", "USETMAXREG", "NANOSLEEP",
           "PREEXIT"),
          why="loops until a barrier is reached are unrolled, groups are counted by scoreboards"),
    Group("padding", "pmevent", ("NOP",), why="keeps matrix instructions apart"),
    Group("rest", "st.param | prefetch | prefetchu | mapa | getctarank | isspacep | brkpt | trap",
          why="arguments of calls that are inlined or never made; hints; addresses of other blocks' shared memory"),
    Group("wmma_memory", "wmma.load | wmma.store", (), why="become loads and stores"),
)  # fmt: skip
"""Each PTX instruction is in one group at most, and so is each machine opcode."""

BY_NAME = {group.name: group for group in GROUPS}

CLASSES: dict[str, tuple[str, ...]] = {
    "load": ("load_global", "load_generic", "load_shared", "load_local", "load_constant", "copy", "bulk_copy",
             "load_matrix"),
    "store": ("store_global", "store_generic", "store_shared", "store_local", "copy", "bulk_copy", "store_matrix"),
    "atomic": ("atomic_global", "atomic_shared"),
    "tensor": ("mma", "wmma", "wgmma"),
    "convert": ("convert", "address"),
}  # fmt: skip
"""Fields of ``inst_count`` → the groups that they are the sum of, where no other instruction is in the class."""

_OPCODE = re.compile(r"(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<rest>[.\w]*)\s*(?P<operands>.*)")


def machine_opcode(text: str) -> tuple[str, str]:
    """Opcode and modifiers of a machine instruction as nvdisasm writes it, what only moves a number called MOV."""
    match = _OPCODE.match(text.strip())
    if match is None:
        return "", ""
    opcode, rest, operands = match["opcode"], match["rest"], match["operands"]
    words = [word.strip() for word in operands.split(",")]
    # Constants are loaded, and registers copied, by whichever unit is idle.
    if opcode == "IMAD" and rest.startswith(".MOV"):
        return "MOV", ""
    if opcode == "HFMA2" and words[1:3] in (["-RZ", "RZ"], ["RZ", "RZ"]):
        return "MOV", ""
    if opcode == "FADD" and any(word in {"RZ", "-RZ"} for word in words[1:]):
        return "MOV", ""
    return opcode, rest


@cache
def _patterns() -> dict[str, Tracepoint]:
    probes = read_probes("groups.toml", probe_text()).probes
    return {probe.name: probe.tracepoint for probe in probes if probe.name in BY_NAME}


@cache
def group_of(opcode: str) -> str:
    """The group of a PTX instruction, given as opcode with modifiers; "" where it is in none."""
    parts = tuple(opcode.split("."))
    facts = find(parts)
    classes = facts.classes if facts is not None else frozenset()
    return next((name for name, tracepoint in _patterns().items() if tracepoint.matches(parts, classes)), "")


def probe_text() -> str:
    """A probe that counts the PTX instructions of each group, as thread instructions, and bytes of shared memory."""
    names = [group.name for group in GROUPS]
    lines = [
        "# How many instructions of each group of bench/counted_groups.py the threads of a kernel execute.",
        "[map.Groups]", 'type = "sum"', 'level = "thread"', f"size = {4 * len(names)}",
        "data = { " + ", ".join(f'{name} = "u32"' for name in names) + " }", "",
        "[probe.total]", 'position = "kernel"', 'level = "thread"', 'after = """',
        *(f".reg .u32 %{name};" for name in names),
        "SAVE [ Groups ] { " + ", ".join(f"%{name}" for name in names) + " };",
        "SAVE [ SharedBytes ] { %loaded, %stored };", '"""',
        "", "[map.SharedBytes]", 'type = "sum"', 'level = "thread"', "size = 8",
        'data = { load = "u32", store = "u32" }',
        "", "[probe.loaded]", 'position = "ld.shared"', 'level = "thread"', 'before = """',
        ".reg .u32 %loaded, %stored;", ".reg .u64 %bytes;", ".reg .u32 %size;",
        "mov.u64 %bytes, BYTES;", "cvt.u32.u64 %size, %bytes;", "add.u32 %loaded, %loaded, %size;", '"""',
        "", "[probe.stored]", 'position = "st.shared !async !bulk"', 'level = "thread"', 'before = """',
        "mov.u64 %bytes, BYTES;", "cvt.u32.u64 %size, %bytes;", "add.u32 %stored, %stored, %size;", '"""',
    ]  # fmt: skip
    for group in GROUPS:
        lines += ["", f"[probe.{group.name}]", f'position = "{group.position}"', 'level = "thread"',
                  f'before = "add.u32 %{group.name}, %{group.name}, 1;"']  # fmt: skip
    return "\n".join(lines) + "\n"
