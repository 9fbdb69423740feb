"""Random CUDA C++ kernels full of products and sums, whose last bits change when one of them is fused otherwise.

    python3 -m bench.rounding_kernels FAMILY

prints a family's source. The same seeds give the same kernels on every machine. All kernels take pointers to inputs of
four types, one to ``out``, where a thread has ``SLOTS`` values, ``THREADS`` apart, and a number of turns. ``mul``,
``add`` and ``sub`` are PTX instructions without a rounding, which nvcc leaves to ``ptxas`` to fuse; of ``*`` and ``+``
its front end fuses most itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCKS, BLOCK, SLOTS, LENGTH, TURNS = 2, 64, 24, 256, 11
THREADS = BLOCKS * BLOCK
SEEDS = 3
"""Kernels of each family and type."""

PRELUDE = f"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef FTZ
#define FTZ ""
#endif
#define SINGLE(name, op) __device__ __forceinline__ float name(float a, float b) \\
{{ float r; asm(op FTZ ".f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }}
#define DOUBLE(name, op) __device__ __forceinline__ double name(double a, double b) \\
{{ double r; asm(op ".f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b)); return r; }}
SINGLE(mul, "mul") SINGLE(add, "add") SINGLE(sub, "sub") SINGLE(quotient, "div.full")
DOUBLE(mul, "mul") DOUBLE(add, "add") DOUBLE(sub, "sub")
#define PAIR(T) \\
__device__ __forceinline__ T mul(T a, T b) {{ return __hmul2(a, b); }} \\
__device__ __forceinline__ T add(T a, T b) {{ return __hadd2(a, b); }} \\
__device__ __forceinline__ T sub(T a, T b) {{ return __hsub2(a, b); }} \\
__device__ __forceinline__ T fused(T a, T b, T c) {{ return __hfma2(a, b, c); }}
PAIR(__half2) PAIR(__nv_bfloat162)
__device__ __forceinline__ float fused(float a, float b, float c) {{ return __fmaf_rn(a, b, c); }}
__device__ __forceinline__ double fused(double a, double b, double c) {{ return __fma_rn(a, b, c); }}
__device__ __forceinline__ int next(int i) {{ asm("add.s32 %0, %0, 1;" : "+r"(i)); return i; }}
#define OUT(T, slot, value) (static_cast<T *>(out)[(slot) * {THREADS} + here] = (value))
"""
TYPES: Mapping[str, tuple[str, str]] = {
    "f32": ("float", "f"), "f64": ("double", "d"), "f16x2": ("__half2", "h"), "bf16x2": ("__nv_bfloat162", "b"),
}  # fmt: skip
"""By PTX type, the type in C++ and the parameter that its inputs come by."""
_HEAD = (
    "const float *{0} f, const double *{0} d, const __half2 *{0} h, const __nv_bfloat162 *{0} b, void *{0} out, int n"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel by its name, which begins with that of its family."""

    name: str
    family: str
    source: str


class _Writer:
    """What the families are written with: one random kernel of a type."""

    def __init__(self, seed: str, kind: str) -> None:
        """Set up a generator of one random kernel's C++. seed: decides all that is random. kind: the PTX type that it
        computes in.

        That is a key of TYPES.
        """
        self.random = random.Random(seed)
        self.type, self.input = TYPES[kind]
        self.is_scalar = kind in ("f32", "f64")
        self.is_single = kind == "f32"

    def x(self) -> str:
        """Return a random C++ expression for an input that depends on the thread and on the turn of the loop."""
        step, offset = self.random.choice([1, 3, 5, 7]), self.random.randrange(LENGTH)
        return f"{self.input}[(here * {step} + i * {self.random.choice([1, 9, 33])} + {offset}) & {LENGTH - 1}]"

    def mul(self, left: str, right: str) -> str:
        """Return a C++ expression for the product of two expressions."""
        return self._op("mul", "*", left, right)

    def add(self, left: str, right: str) -> str:
        """Return a C++ expression for the sum of two expressions."""
        return self._op("add", "+", left, right)

    def sub(self, left: str, right: str) -> str:
        """Return a C++ expression for the difference of two expressions."""
        return self._op("sub", "-", left, right)

    def sum(self, left: str, right: str) -> str:
        """Return a random C++ expression: the sum or difference of two expressions, in either order."""
        if self.random.random() < 0.5:
            left, right = right, left
        return self.random.choice([self.add, self.sub])(left, right)

    def _op(self, name: str, sign: str, left: str, right: str) -> str:
        """Return a C++ expression for an operation, written in one of two ways at random.

        Mostly by the PTX instruction ``name``, which ptxas may fuse, else by the operator ``sign``, which nvcc's front
        end fuses.
        """
        if self.random.random() < 0.75:
            return f"{name}({left}, {right})"
        return f"({left} {sign} {right})"

    def let(self, name: str, value: str) -> str:
        """Return a C++ statement that declares a variable of the random kernel's type."""
        return f"{self.type} {name} = {value};"

    def loop(self, code: str) -> str:
        """Return C++ for a loop around code, unrolled in one of several ways at random."""
        # Turns that nvcc cannot count leave it to ptxas to unroll the loop, unless a probe makes it too long.
        unrolled, turns, step = self.random.choice([
            *[("", count, "i = next(i)") for count in "44688"], ("", "n", "i = next(i)"),
            ('_Pragma("unroll 1")', "n", "i++"), ('_Pragma("unroll")', "5", "i++"), ("", "n", "i++"),
        ])  # fmt: skip
        return f"{unrolled} for (int i = 0; i < {turns}; {step}) {{\n{code}\n}}\n"

    def begin(self, *names: str) -> str:
        """Return C++ that declares variables of the random kernel, each with an input in it."""
        return " ".join(self.let(name, self.x().replace("i *", "3 *")) for name in names)

    def end(self, *names: str, first: int = 0) -> str:
        """Return C++ that writes variables to the thread's output slots, from slot ``first`` on."""
        return " ".join(f"OUT({self.type}, {first + place}, {name});" for place, name in enumerate(names))

    def kept(self, *names: str) -> str:
        """Return C++ that writes one of some variables to an output slot in each turn of the loop, or nothing, at
        random."""
        if self.random.random() < 0.6:
            return ""
        name = self.random.choice(names)
        return f"OUT({self.type}, 8 + i, {name});"


def _polynomial(w: _Writer) -> str:
    """Random C++ for the body of a kernel that evaluates polynomials: each sum adds to a product of the turn before.

    w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("y", w.x())]
    code += [f"s = {w.sum(w.mul('s', 'x'), 'y')};", f"t = {w.sum(w.mul('t', 'y'), w.mul('x', 's'))};"]
    return f"{w.begin('s', 't')} {w.loop(' '.join(code) + w.kept('s', 't'))} {w.end('s', 't')}"


def _shared(w: _Writer) -> str:
    """Random C++ for the body of a kernel with a product that several sums read: fusing it into one leaves the others.

    w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("p", w.mul("x", w.x())), f"s = {w.sum('p', 's')};"]
    code += [f"t = {w.sum('p', 't')};"] if w.random.random() < 0.7 else [f"t = {w.mul('p', 't')};"]
    code += [f"u = {w.sum('u', w.mul('p', 'x'))};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('p', 's'))} {w.end('s', 't', 'u')}"


def _carried(w: _Writer) -> str:
    """Random C++ for the body of a kernel in which a product of one turn of the loop is added in the next.

    w: gives the pieces.
    """
    code = [f"s = {w.sum('s', 'p')};", w.let("x", w.x()), f"p = {w.mul('p' if w.random.random() < 0.3 else 's', 'x')};"]
    code += [f"t = {w.sum('t', w.mul('x', 'p'))};"]
    return f"{w.begin('s', 't', 'p')} {w.loop(' '.join(code) + w.kept('s', 'p'))} {w.end('s', 't', 'p')}"


def _branches(w: _Writer) -> str:
    """Random C++ for the body of a kernel with products before branches, and sums after or within them, taken by lane
    and by turn. w: gives the pieces.
    """
    condition = w.random.choice(["i & 1", "here % 3 == 0", "(here >> i) & 1", "i > 3"])
    code = [w.let("x", w.x()), w.let("p", w.mul("x", w.x())), w.let("q", w.mul("x", "s"))]
    code += [f"if ({condition}) {{ s = {w.sum('s', 'p')}; {w.kept('s')} }}"]
    code += [f"else {{ t = {w.sum('t', 'q')}; p = {w.mul('q', 'x')}; }}", f"u = {w.sum('u', 'p')};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code))} {w.end('s', 't', 'u')}"


def _dual(w: _Writer) -> str:
    """Random C++ for the body of a kernel with sums of two products, either of which may be fused, and two
    accumulators. w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("y", w.x())]
    code += [w.let("p", w.sum(w.mul("x", w.x()), w.mul("y", w.x()))), f"s = {w.sum('s', 'p')};"]
    code += [f"t = {w.sum(w.mul('t', 'x'), w.mul('s', 'y'))};"]
    code += [w.let("q", w.mul("s", "x")), w.let("r", w.mul("t", "y")), f"u = {w.sum('q', 'r')};"]
    code += [f"s = {w.sum('s', w.mul('r', 'x'))};"] if w.random.random() < 0.4 else []
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('p', 'u', 't'))} {w.end('s', 't', 'u')}"


def _beside(w: _Writer) -> str:
    """Random C++ for the body of a kernel with the same product twice: fused by the source, and left for the compiler
    to fuse. w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("y", w.x()), w.let("p", w.mul("x", "y")), f"s = {w.sum('p', 's')};"]
    code += ["t = fused(x, y, t);", f"u = {w.sum('u', w.sub('fused(x, y, s)', w.mul('x', 'y')))};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('p', 's'))} {w.end('s', 't', 'u')}"


def _complex(w: _Writer) -> str:
    """Random C++ for the body of a kernel that multiplies complex numbers: a difference and a sum of two products each.

    w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("y", w.x())]
    code += [w.let("re", w.sub(w.mul("s", "x"), w.mul("t", "y"))), w.let("im", w.add(w.mul("s", "y"), w.mul("t", "x")))]
    code += ["s = re; t = im;", f"u = {w.sum(w.add(w.mul('s', 's'), w.mul('t', 't')), 'u')};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('re', 'im'))} {w.end('s', 't', 'u')}"


def _errors(w: _Writer) -> str:
    """Random C++ for the body of a kernel that computes what sums and products lose (two-sum, two-product, Kahan):
    differences of nothing but roundings. w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("p", w.mul("x", w.x())), w.let("y", w.sub("p", "lost"))]
    code += [w.let("v", w.add("s", "y"))]
    code += [f"lost = {w.sub(w.sub('v', 's'), 'y')}; s = v;"]
    code += [w.let("q", w.mul("x", "s")), w.let("e", w.random.choice(["fused(x, s, -q)", w.sub("q", w.mul("x", "s"))]))]
    code += [w.let("z", w.sub("v", "q")), f"t = {w.sum('t', w.add(w.sub('v', w.sub('v', 'z')), 'e'))};"]
    return f"{w.begin('s', 't', 'lost')} {w.loop(' '.join(code) + w.kept('e', 'lost'))} {w.end('s', 't', 'lost')}"


def _dot(w: _Writer) -> str:
    """Random C++ for the body of a kernel that sums products through shared memory and between lanes.

    w: gives the pieces.
    """
    shuffle = w.random.choice(["xor", "down"])
    code = [f"tile[threadIdx.x] = {w.mul(w.x(), w.x())}; __syncthreads();"]
    code += [w.let("x", "tile[(threadIdx.x * 5 + i) & 63]"), w.let("p", w.mul("x", "tile[(threadIdx.x ^ i) & 63]"))]
    code += [f"s = {w.sum('s', 'p')}; __syncthreads();"]
    moved = [f"s = add(s, mul(__shfl_{shuffle}_sync(0xffffffffu, s, {1 << bit}), t));" for bit in range(5)]
    return (f"__shared__ {w.type} tile[64]; {w.begin('s', 't')} {w.loop(' '.join(code) + w.kept('s', 'p'))} "
            f"{w.end('s')} {' '.join(moved)} {w.end('s', first=1)}")  # fmt: skip


def _mixed(w: _Writer) -> str:
    """Random C++ for the body of a kernel of random operations, one after the other, in a loop. w: gives the pieces."""
    names = ["s", "t", "u", "v", "p", "q"]
    code = [w.let("x", w.x()), w.let("y", w.x())]
    for _ in range(w.random.randrange(5, 12)):
        target, one, other = (w.random.choice(names) for _ in range(3))
        factor = w.random.choice("xy")
        code.append(w.random.choice([
            f"{target} = {w.sum(w.mul(one, factor), other)};",
            f"p = {w.mul(one, factor)}; {target} = {w.sum('p', other)};",
            f"q = {w.mul(one, factor)};",
            f"{target} = {w.sum('p', w.random.choice('stuq'))};",
            f"{target} = fused({one}, {factor}, {other});",
            f"if ((here + i) & {w.random.choice([1, 2, 4])}) {target} = {w.sum('q', one)};",
        ]))  # fmt: skip
    code += [f"{name} = mul({name}, x);" for name in names[:4]]
    return f"{w.begin(*names)} {w.loop(' '.join(code) + w.kept(*names))} {w.end(*names)}"


def _divisions(w: _Writer) -> str:
    """Random C++ for the body of a kernel of divisions, which the compiler expands to products and sums.

    w: gives the pieces.
    """
    quotients = ["quotient(x, y)", "(x / y)", "__fdividef(x, y)", "quotient(s, y)", "(t / y)", "quotient(1.0f, y)"]
    one, other = w.random.sample(quotients, 2)
    code = [w.let("x", w.x()), w.let("y", w.x()), w.let("q", one)]
    code += [f"s = {w.sum('s', w.random.choice(['q', w.mul('q', 'x')]))};"]
    code += [f"t = {w.sum(other, w.random.choice(['t', w.mul('x', 'y'), '1.0f']))};"] if w.random.random() < 0.7 else []
    code += [f"u = {w.sum(w.mul('u', 'x'), 's')}; s = {w.mul('s', 'x')};"]
    code += [f"if ((here + i) & {w.random.choice([1, 2, 3])}) t = {w.mul('t', 'y')};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('q', 's'))} {w.end('s', 't', 'u')}"


def _functions(w: _Writer) -> str:
    """Return random C++ for the body of a kernel that calls functions: roots, exponentials, logarithms.

    nvcc writes these as products and sums, which ptxas may fuse into FMAs; a twin must fuse the same ones. w: gives the
    pieces.
    """
    of_x = ["rsqrtf(fabsf(x))", "__expf(x)", "sqrtf(fabsf(x))", "__logf(fabsf(x))", "expf(x)", "tanhf(x)", "__sinf(x)",
            "__frcp_rn(x)", "1.0f / (1.0f + __expf(-x))"]  # fmt: skip
    code = [w.let("x", w.x()), w.let("e", w.random.choice(of_x)), w.let("g", w.random.choice(of_x))]
    code += [f"s = {w.sum('s', w.mul('e', 'x'))};", f"t = {w.sum(w.mul('t', 'x'), w.random.choice(['e', 'g']))};"]
    code += [f"u = {w.sum('u', w.random.choice(['g', w.mul('g', 'e')]))};"]
    return f"{w.begin('s', 't', 'u')} {w.loop(' '.join(code) + w.kept('e', 's'))} {w.end('s', 't', 'u')}"


def _wide(w: _Writer) -> str:
    """Random C++ for the body of a kernel that adds float products to double accumulators. w: gives the pieces."""
    x, y = w.x(), w.x()
    code = [f"float x = {x}, y = {y}; float p = {w.mul('x', 'y')};"]
    code += [f"s = {w.sum('s', 'double(p)')};", f"t = {w.sum('t', w.mul('double(x)', 'double(y)'))};"]
    code += [f"u = {w.sum('u', w.mul('u', 'x'))};"]
    loop = w.loop(" ".join(code))
    return (f"double s = 0.1, t = 0.7; float u = {w.x().replace('i *', '3 *')}; {loop} "
            "OUT(double, 0, s); OUT(double, 1, t); OUT(float, 7, u);")  # fmt: skip


def _apart(w: _Writer) -> str:
    """Random C++ for the body of a kernel in which no product reaches a sum: nothing to fuse, whatever the compiler
    repeats. w: gives the pieces.
    """
    code = [w.let("x", w.x()), w.let("y", w.x()), f"p = {w.mul('p', 'x')};", f"s = {w.sum('s', 'y')};"]
    code += [f"t = fused(t, x, y); u = {w.mul('u', 's')};"]
    code += [f"if (here & i) {{ u = {w.mul('u', 'x')}; s = {w.add('s', 'x')}; }}"]
    other = w.random.choice(["__shfl_xor_sync(0xffffffffu, s, 1)", "__shfl_down_sync(0xffffffffu, t, 2)", "t"])
    moved = f"s = add(s, {other});"
    return (f"{w.begin('s', 't', 'u', 'p')} {w.loop(' '.join(code) + w.kept('p', 's'))} {moved} "
            f"{w.end('s', 't', 'u', 'p')}")  # fmt: skip


_ALL, _SCALAR, _SINGLE = tuple(TYPES), ("f32", "f64"), ("f32",)
FAMILIES: Mapping[str, tuple[Callable[[_Writer], str], Sequence[str]]] = {
    "polynomial": (_polynomial, _ALL),
    "shared": (_shared, _ALL),
    "carried": (_carried, _ALL),
    "branches": (_branches, _ALL),
    "dual": (_dual, _ALL),
    "beside": (_beside, _ALL),
    "complex": (_complex, _SCALAR),
    "errors": (_errors, _SCALAR),
    "dot": (_dot, _ALL),
    "mixed": (_mixed, _ALL),
    "divisions": (_divisions, _SINGLE * 6),
    "functions": (_functions, _SINGLE * 2),
    "wide": (_wide, _SINGLE * 2),
    "apart": (_apart, _SCALAR * 2),
}
"""What writes a family's kernels, and of which types; one that is there more than once has more of them."""
NOTHING_TO_FUSE = ("apart",)
"""Families in which no product reaches a sum."""


def kernels(seeds: int = SEEDS) -> list[Kernel]:
    """Generate all random kernels, in a fixed order. seeds: how many of each family and type."""
    made = []
    for family, (write, kinds) in FAMILIES.items():
        for place, kind in enumerate(kinds):
            for seed in range(seeds):
                name = f"{family}_{kind}_{place * seeds + seed}"
                # The name says the seed: a string's is the same in every process.
                writer = _Writer(name, kind)
                body = write(writer)
                # Without it what is loaded may be a product that was stored.
                head = _HEAD.format("" if family != "apart" and writer.random.random() < 0.5 else "__restrict__")
                source = (f'extern "C" __global__ void {name}({head}) {{\n'
                          f"int here = blockIdx.x * {BLOCK} + threadIdx.x;\n{body}\n}}\n")  # fmt: skip
                made.append(Kernel(name, family, source))
    return made


def inputs() -> list[npt.NDArray[np.generic]]:
    """Generate the arrays that a kernel's four pointers point at (f32, f64, f16, bf16), with magnitudes from a half to
    one.

    Mantissas are random, and both signs occur.
    """
    generator = np.random.default_rng(5)

    def values(count: int) -> npt.NDArray[np.float64]:
        """``count`` random numbers with magnitudes from a half to one."""
        return generator.uniform(0.5, 1, count) * generator.choice([-1.0, 1.0], count)

    # A bfloat16 is the upper half of a float.
    upper = (values(2 * LENGTH).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return [values(LENGTH).astype(np.float32), values(LENGTH), values(2 * LENGTH).astype(np.float16), upper]


if __name__ == "__main__":
    print(PRELUDE + "".join(kernel.source for kernel in kernels() if kernel.family == sys.argv[1]))
