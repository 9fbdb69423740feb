# Where the first NaN comes from.
#
# A record for each instruction that gave some thread its first NaN: how many threads, and when first. The instruction
# with the least time is the first one of the launch. Instructions as in value_watch: arithmetic, the functions of the
# class special, conversions to a narrower type; loads, moves and tensor instructions are left out.
import neutrino.language as nl
from neutrino import Map, probe

has_one: nl.u32 = 0
# Under the condition alone, since the time is slow to read.
when: nl.u64 = 0


@Map(level="thread", type="hash", keep=["min"])
class FirstNaN:
    site: nl.u32
    time: nl.u64


def keep_first():
    when = nl.time()
    has_one = 1
    FirstNaN.save(nl.site, when)


@probe(
    pos="add.f32 | sub.f32 | mul.f32 | fma.f32 | mad.f32 | div.f32 | rcp.f32 | sqrt.f32 | rsqrt.f32"
    " | sin.f32 | cos.f32 | lg2.f32 | ex2.f32 | tanh.f32 | cvt.f32.f64",
    level="thread", after=True,
)  # fmt: skip
def single():
    value: nl.f32 = nl.out
    if nl.unlikely(has_one == 0 and value != value):
        keep_first()


@probe(
    pos="add.f64 | sub.f64 | mul.f64 | fma.f64 | mad.f64 | div.f64 | rcp.f64 | sqrt.f64 | rsqrt.f64",
    level="thread", after=True,
)  # fmt: skip
def double():
    value: nl.f64 = nl.out
    if nl.unlikely(has_one == 0 and value != value):
        keep_first()


@probe(
    pos="add.f16 | sub.f16 | mul.f16 | fma.f16 | tanh.f16 | ex2.f16 | cvt.f16.f32 | cvt.f16.f64",
    level="thread", after=True,
)  # fmt: skip
def half():
    value: nl.f16 = nl.out
    if nl.unlikely(has_one == 0 and value != value):
        keep_first()


@probe(
    pos="add.f16x2 | sub.f16x2 | mul.f16x2 | fma.f16x2 | tanh.f16x2 | ex2.f16x2 | cvt.f16x2.f32",
    level="thread", after=True,
)  # fmt: skip
def half_pair():
    value: nl.u32 = nl.out
    if nl.unlikely(has_one == 0 and ((value & 0x7FFF) > 0x7C00 or (value >> 16 & 0x7FFF) > 0x7C00)):
        keep_first()


@probe(
    pos="add.bf16 | sub.bf16 | mul.bf16 | fma.bf16 | tanh.bf16 | ex2.bf16 | cvt.bf16.f32",
    level="thread", after=True,
)  # fmt: skip
def brain():
    value: nl.bf16 = nl.out
    if nl.unlikely(has_one == 0 and value != value):
        keep_first()


@probe(
    pos="add.bf16x2 | sub.bf16x2 | mul.bf16x2 | fma.bf16x2 | tanh.bf16x2 | ex2.bf16x2 | cvt.bf16x2.f32",
    level="thread", after=True,
)  # fmt: skip
def brain_pair():
    value: nl.u32 = nl.out
    if nl.unlikely(has_one == 0 and ((value & 0x7FFF) > 0x7F80 or (value >> 16 & 0x7FFF) > 0x7F80)):
        keep_first()
