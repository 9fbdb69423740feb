# What kinds of instructions the threads of a kernel execute.
#
# One record per launch, added up over all threads: instructions of the PTX text, each in one field at most; what is in
# none is in all only. docs/library.md lists the fields. inst_count has the classes of tracepoints, which overlap.
import neutrino.language as nl
from neutrino import Map, probe

n_all: nl.u64 = 0
n_integer: nl.u64 = 0
n_fp16: nl.u64 = 0
n_fp32: nl.u64 = 0
n_fp64: nl.u64 = 0
n_special: nl.u64 = 0
n_compare: nl.u64 = 0
n_logic: nl.u64 = 0
n_move: nl.u64 = 0
n_convert: nl.u64 = 0
n_load: nl.u64 = 0
n_store: nl.u64 = 0
n_copy: nl.u64 = 0
n_atomic: nl.u64 = 0
n_lanes: nl.u64 = 0
n_barrier: nl.u64 = 0
n_branch: nl.u64 = 0
n_tensor: nl.u64 = 0


@Map(level="thread", type="sum")
class OpcodeMix:
    all: nl.u64
    integer: nl.u64
    fp16: nl.u64
    fp32: nl.u64
    fp64: nl.u64
    special: nl.u64
    compare: nl.u64
    logic: nl.u64
    move: nl.u64
    convert: nl.u64
    load: nl.u64
    store: nl.u64
    copy: nl.u64
    atomic: nl.u64
    lanes: nl.u64
    barrier: nl.u64
    branch: nl.u64
    tensor: nl.u64


@probe(pos="kernel", level="thread", after=True)
def total():
    OpcodeMix.save(
        n_all, n_integer, n_fp16, n_fp32, n_fp64, n_special, n_compare, n_logic, n_move, n_convert, n_load,
        n_store, n_copy, n_atomic, n_lanes, n_barrier, n_branch, n_tensor,
    )  # fmt: skip


@probe(pos="*", level="thread", before=True)
def all():
    n_all += 1


@probe(
    pos="(add | addc | sub | subc | mul | mad | madc | div | rem | min | max | abs | neg | sad)"
    " & (u16* | u32 | u64 | s16* | s32 | s64)"
    " | mul24 | mad24 | popc | clz | bfind | fns | brev | bfe | bfi | szext | bmsk | dp4a | dp2a",
    level="thread", before=True,
)  # fmt: skip
def integer():
    n_integer += 1


@probe(
    pos="(add | sub | mul | mad | fma | div | min | max | abs | neg) & (f16* | bf16*) & !f32",
    level="thread", before=True,
)  # fmt: skip
def fp16():
    n_fp16 += 1


@probe(
    pos="(add | sub | mul | mad | fma | div | min | max | abs | neg | copysign) & (f32 | f32x2)",
    level="thread", before=True,
)  # fmt: skip
def fp32():
    n_fp32 += 1


@probe(
    pos="(add | sub | mul | mad | fma | div | min | max | abs | neg | copysign) & f64", level="thread", before=True
)
def fp64():
    n_fp64 += 1


@probe(pos="special", level="thread", before=True)
def special():
    n_special += 1


@probe(pos="set | setp | selp | slct | testp", level="thread", before=True)
def compare():
    n_compare += 1


@probe(pos="and | or | xor | not | cnot | lop3 | shf | shl | shr", level="thread", before=True)
def logic():
    n_logic += 1


@probe(pos="mov | prmt", level="thread", before=True)
def move():
    n_move += 1


@probe(pos="convert", level="thread", before=True)
def convert():
    n_convert += 1


@probe(pos="load & !store & !atomic", level="thread", before=True)
def load():
    n_load += 1


@probe(pos="store & !load", level="thread", before=True)
def store():
    n_store += 1


@probe(pos="load & store", level="thread", before=True)
def copy():
    n_copy += 1


@probe(pos="atomic", level="thread", before=True)
def atomic():
    n_atomic += 1


@probe(pos="shfl | vote | match | redux | activemask | elect", level="thread", before=True)
def lanes():
    n_lanes += 1


@probe(pos="barrier", level="thread", before=True)
def barrier():
    n_barrier += 1


@probe(pos="branch", level="thread", before=True)
def branch():
    n_branch += 1


@probe(pos="tensor", level="thread", before=True)
def tensor():
    n_tensor += 1
