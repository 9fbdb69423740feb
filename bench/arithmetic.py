"""What a GPU computes for each arithmetic instruction, for the embedded device to be compared with.

    python3 -m bench.arithmetic record --out FOLDER    on a machine with a GPU: FOLDER/arithmetic_h200.json and
                                                       FOLDER/arithmetic.npz, the whole results
    python3 -m bench.arithmetic compare FILE.npz       where the emulator differs from the whole results

The PTX is compiled by the driver, some instructions a module; a module that it refuses is halved until the instruction
at fault is alone. NumPy is all that it needs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np

from bench.arithmetic_forms import BLOCK, HEAD, WARPS, Bound, Form, Product, forms, kernel, product_kernel, products
from bench.arithmetic_operands import TUPLES, bits_of, float_type, fragments, is_float, operands
from bench.device import DriverError, Gpu, read_device
from bench.tree import made_of
from neutrino.emulator.arithmetic import find_matrix_operation, find_operation

Json = Any
Array = np.ndarray[Any, Any]
Instruction = Form | Product

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "arithmetic_h200.json"
GROUP = 100
"""Instructions a module."""
SAMPLES = 64
"""Tuples (of matrix products: lanes) of which an inexact result is kept as it is, evenly spread."""
EXAMPLES = 4

_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}


@dataclass(frozen=True)
class Launch:
    """What `Gpu.launch` starts: enough threads for one a tuple."""

    kernel: str
    grid: tuple[int, int, int] = (TUPLES // BLOCK, 1, 1)
    block: tuple[int, int, int] = (BLOCK, 1, 1)
    shared: int = 0


def instructions() -> tuple[Instruction, ...]:
    """Return all PTX instructions whose results are compared between GPU and emulator: scalar, packed, and matrix
    products."""
    return (*forms(), *products())


def read_by(instruction: Instruction) -> Array:
    """Return the inputs on which an instruction is tried, as the test kernel reads them: uint64 [operands, TUPLES].

    Of a matrix product uint32 [WARPS, 32 lanes, words of a, b and c].
    """
    if isinstance(instruction, Form):
        return operands(instruction.inputs)
    return np.concatenate(
        [
            fragments(name, count, WARPS, instruction.whole, f"{instruction.opcode} {place}")
            for place, (name, count) in enumerate(zip(instruction.types, instruction.counts[:3], strict=False))
        ],
        axis=2,
    )


def written_by(instruction: Instruction) -> Array:
    """Return zeros of the shape of the results that an instruction's test kernel writes: uint64 [results, TUPLES].

    Of a matrix product uint32 [WARPS, 32 lanes, words of d].
    """
    if isinstance(instruction, Form):
        return np.zeros((len(instruction.outputs), TUPLES), np.uint64)
    return np.zeros((WARPS, 32, instruction.counts[3]), np.uint32)


def module_text(group: Sequence[Instruction]) -> str:
    """One PTX module with a kernel for each instruction, named `k0`, `k1` … in their order."""
    return HEAD + "".join(
        kernel(one, f"k{place}") if isinstance(one, Form) else product_kernel(one, f"k{place}")
        for place, one in enumerate(group)
    )


# -- the emulator's results


def _emulate_form(form: Form) -> Array:
    """What the emulator computes for a scalar or packed instruction: uint64 [results, TUPLES], each value in the lowest
    bits. Raises ValueError when the emulator has no such instruction, or one of other operands.
    """
    operation = find_operation(form.opcode, 1 if form.carry else len(form.outputs))
    if operation is None:
        raise ValueError(f"{form.name}: not the emulator's")
    words = list(operands(form.inputs))
    words += [np.full(TUPLES, int(constant, 0), np.uint64) for constant in form.constants]
    if len(words) != len(operation.inputs) or operation.carry != form.carry:
        raise ValueError(f"{form.name}: {len(operation.inputs)} operands and carry {operation.carry} in the emulator")
    arguments = [
        word != 0 if dtype == np.bool_ else word.astype(f"u{dtype.itemsize}").view(dtype)
        for word, dtype in zip(words, operation.inputs, strict=True)
    ]
    # What is recorded of subtractions is the borrow, as `subc` sees it; their flag is its opposite.
    is_borrow = form.opcode.startswith("sub")
    if is_borrow and form.carry in ("in", "inout"):
        arguments[-1] = ~arguments[-1]
    results = operation.function(*arguments)
    held = results if len(operation.outputs) > 1 else (results,)
    if is_borrow and form.carry in ("out", "inout"):
        held = (*held[:-1], ~np.asarray(held[-1]))
    return np.stack(
        [
            np.array(np.broadcast_to(result, TUPLES)).view(f"u{dtype.itemsize}").astype(np.uint64)
            for result, dtype in zip(held, operation.outputs, strict=True)
        ]
    )


def _multiply(matrix: Product, words: Array) -> Array:
    """Compute a matrix product with the emulator. words: uint32 [WARPS, 32, words of a, b and c]; returns [.., words of
    d].

    Raises ValueError when it has no such product.
    """
    operation = find_matrix_operation(matrix.opcode)
    if operation is None:
        raise ValueError(f"{matrix.name}: not the emulator's")
    if (operation.a, operation.b, operation.c, operation.d) != matrix.counts:
        raise ValueError(f"{matrix.name}: other numbers of words in the emulator")
    a, b, _ = np.cumsum(matrix.counts[:3])
    return np.asarray(operation.function(words[:, :, :a], words[:, :, a:b], words[:, :, b:]))


def emulate(instruction: Instruction) -> Array:
    """Compute an instruction's results on all its test inputs with the emulator, in the shape of ``written_by``.

    Raises ValueError if it has no such instruction.
    """
    with np.errstate(all="ignore"):
        if isinstance(instruction, Form):
            return _emulate_form(instruction)
        return _multiply(instruction, read_by(instruction))


# -- results and what is kept of them


def defined(instruction: Instruction) -> Array:
    """Return for which test inputs the PTX ISA says what an instruction computes: bool [TUPLES]. Of others nothing is
    compared."""
    every = np.ones(TUPLES, np.bool_)
    if not isinstance(instruction, Form):
        return every
    mnemonic, *_ = instruction.opcode.split(".")
    words = operands(instruction.inputs)
    if mnemonic in ("div", "rem") and not is_float(instruction.inputs[1]):
        return words[1] != 0
    if instruction.opcode.startswith("div.approx"):
        # 9.7.3.8 bounds the error for divisors of these magnitudes only.
        divisor = np.abs(values_of(words[1], "f32"))
        return ~((divisor > 0) & (divisor < 2.0**-126)) & ~((divisor > 2.0**126) & np.isfinite(divisor))
    if instruction.bound is not None and instruction.bound.domain is not None:
        return np.abs(values_of(words[0], instruction.inputs[0])) <= instruction.bound.domain
    return every


def values_of(words: Array, name: str) -> Array:
    """Words of floating point (name: f16, bf16, f32, f64), bits in the lowest places, as values in float64."""
    if name == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    size = bits_of(name) // 8
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.asarray(words.astype(f"u{size}").view(f"f{size}").astype(np.float64))


def with_one_nan(words: Array, name: str) -> Array:
    """The words, with every NaN replaced by one and the same, as PTX promises neither sign nor payload.

    name: the PTX type of a word; other types than floating point are returned as they are.
    """
    if name in _PACKED:
        half = bits_of(name) // 2
        mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
        return with_one_nan(words & mask, _PACKED[name]) | (with_one_nan(words >> shift, _PACKED[name]) << shift)
    if name in ("e4m3", "e5m2"):
        infinity = 0x7E if name == "e4m3" else 0x7C
    elif name == "tf32" or is_float(name):
        _, _, fraction = float_type("f32" if name == "tf32" else name)
        infinity = ((1 << bits_of(name) - 1) - 1) >> fraction << fraction
    else:
        return words
    sign = np.uint64(1 << bits_of(name) - 1)
    return np.where((words & ~sign) > np.uint64(infinity), sign - np.uint64(1), words)


def settled(instruction: Instruction, words: Array) -> Array:
    """Return results with everything removed that the PTX ISA does not promise, so that a GPU's and the emulator's can
    be compared: one NaN for all, zero where it says nothing.

    words: [results, TUPLES] of a scalar instruction (a ``Form``); of a product of matrices its matrices of results.
    """
    if not isinstance(instruction, Form):
        # A product of matrices: the fourth type is the result's. f16 is in pairs; f64 in halves, compared as they are.
        name = {"f16": "f16x2", "f64": "u32"}.get(instruction.types[3], instruction.types[3])
        return with_one_nan(words.astype(np.uint64), name)
    known = defined(instruction)
    return np.stack(
        [
            np.where(known, with_one_nan(row, name), np.uint64(0))
            for row, name in zip(words, instruction.outputs, strict=True)
        ]
    )


def digest(words: Array) -> str:
    """Return a digest (SHA-256, in hex) of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()


def sampled(instruction: Instruction, words: Array) -> Array:
    """Return every n-th result of an instruction, SAMPLES of TUPLES, which the results file has in full beside a digest
    of all.

    words: [results, TUPLES] of a scalar instruction (a ``Form``), which becomes [results, SAMPLES]; of a product of
    matrices its matrices of results, which become [SAMPLES, words].
    """
    if isinstance(instruction, Form):
        return words[:, :: TUPLES // SAMPLES]
    return words.reshape(-1, words.shape[2])[:: TUPLES // SAMPLES]


def result_row(instruction: Instruction, words: Array) -> dict[str, Json]:
    """Return what the results file keeps of an instruction: digests of operands and results, and of inexact results a
    sample.

    inputs: 16 digits, to tell other operands from other results.
    """
    row: dict[str, Json] = {"inputs": digest(read_by(instruction))[:16], "sha256": digest(words)}
    if not is_exact(instruction):
        row["sample"] = base64.b64encode(
            zlib.compress(np.ascontiguousarray(sampled(instruction, words)).tobytes(), 9)
        ).decode()
    elif (known := digest(settled(instruction, words))) != digest(words.astype(np.uint64)):
        row["settled"] = known
    return row


def kept_sample(instruction: Instruction, row: Json) -> Array:
    """Decode the sample of results in an instruction's row of the results file, in the shape of ``sampled``."""
    like = sampled(instruction, written_by(instruction))
    raw = zlib.decompress(base64.b64decode(row["sample"]))
    return np.frombuffer(raw, like.dtype).reshape(like.shape)


def is_exact(instruction: Instruction) -> bool:
    """Whether the GPU's results of an instruction must equal the emulator's bit for bit, rather than within a bound."""
    return not instruction.bound


def _ordered(words: Array, name: str) -> Array:
    """Words of floating point as int64 in the order of their values, a step of 1 from each to the next; both zeros are
    0.
    """
    # Words as integers in the order of the values that they stand for; both zeros are 0.
    sign = np.uint64(1 << bits_of(name) - 1)
    magnitude = (words & ~sign).astype(np.int64)
    return np.where(words & sign != 0, -magnitude, magnitude)


def _excess(words: Array, expected: Array, name: str, bound: Bound) -> tuple[Array, Array]:
    """Compare inexact results with expected ones: return which are out of bounds, and by how many steps of the type
    each is off.

    -1 steps where only one of the two is NaN. name: the scalar PTX type of the words.
    """
    nan = np.uint64((1 << bits_of(name) - 1) - 1)
    got, wanted = with_one_nan(words, name), with_one_nan(expected, name)
    steps = np.abs(_ordered(got, name) - _ordered(wanted, name))
    is_nan = (got == nan) | (wanted == nan)
    far = np.abs(values_of(got, name) - values_of(wanted, name))
    near = (steps <= bound.ulp) | (far <= bound.absolute)
    return np.where(is_nan, got != wanted, ~near), np.where(is_nan, np.where(got == wanted, 0, -1), steps)


def misses(form: Form, words: Array, expected: Array, known: Array) -> tuple[Array, int]:
    """Return which of the inexact results [results, n] miss their error bound, and the largest error, in steps, of the
    others.

    known: bool [n], those that are bounded at all. Steps that only the absolute part of the bound covers do not count.
    form: the instruction, whose bound is meant. words: results of the GPU; expected: of the emulator.
    """
    if form.bound is None:
        raise ValueError(f"{form.name} is exact")
    name = form.outputs[0]
    parts = [(words[0], expected[0], name)]
    if name in _PACKED:
        half = bits_of(name) // 2
        mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
        parts = [
            (words[0] & mask, expected[0] & mask, _PACKED[name]),
            (words[0] >> shift, expected[0] >> shift, _PACKED[name]),
        ]
    missed, largest = np.zeros(words.shape[1], np.bool_), 0
    with np.errstate(all="ignore"):
        for got, wanted, scalar in parts:
            bad, steps = _excess(got, wanted, scalar, form.bound)
            missed |= bad & known
            within = steps[known & (steps <= form.bound.ulp)]
            largest = max(largest, int(within.max(initial=0)))
    return missed, largest


_SIGNS = {
    "f16": 0x80008000,
    "bf16": 0x80008000,
    "e4m3": 0x80808080,
    "e5m2": 0x80808080,
    "tf32": 1 << 31,
    "f32": 1 << 31,
}


def magnitudes(matrix: Product) -> Array:
    """Return the scale for errors of a matrix product: for each result the sum of the magnitudes of the products added.

    float64 [WARPS, 32, elements of d in a lane].
    """
    words = read_by(matrix).copy()
    edges = np.cumsum((0, *matrix.counts[:3]))
    for place, name in enumerate(matrix.types[:3]):
        part = words[:, :, edges[place] : edges[place + 1]]
        if name == "f64":
            part[:, :, 1::2] &= np.uint32(0x7FFFFFFF)
        else:
            part &= np.uint32(~_SIGNS[name] & 0xFFFFFFFF)
    with np.errstate(all="ignore"):
        return elements(matrix, _multiply(matrix, words))


def elements(matrix: Product, words: Array) -> Array:
    """Return the results of a matrix product in floating point as float64 numbers.

    words: uint32 [..., words], each holding two f16, one f32 or half an f64.
    """
    dtype = {"f16": "f2", "f32": "f4", "f64": "f8"}[matrix.types[3]]
    return np.ascontiguousarray(words).view(dtype).astype(np.float64)


def relative_errors(matrix: Product, words: Array, expected: Array, scale: Array) -> Array:
    """How far results of a matrix product are from expected ones, as parts of `scale`: the sums of magnitudes that were
    added.
    """
    with np.errstate(all="ignore"):
        return np.abs(elements(matrix, words) - elements(matrix, expected)) / scale


def errors_row(instruction: Instruction, words: Array) -> dict[str, Json]:
    """Return, for an instruction with inexact results, how many miss their bound, and the largest error of the others.

    The error is in steps of the type; of a matrix product it is the power of two that it is of the magnitudes added,
    and counts where it misses as well.
    """
    expected = emulate(instruction)
    if isinstance(instruction, Form):
        missed, largest = misses(instruction, words, expected, defined(instruction))
        return {"missed": int(missed.sum()), "largest": largest}
    errors = relative_errors(instruction, words, expected, magnitudes(instruction))
    return {"missed": int((~(errors <= instruction.bound)).sum()), "largest": _log2(np.nanmax(errors))}


# -- the GPU


def _run_module(gpu: Gpu, group: Sequence[Instruction]) -> Iterator[tuple[Instruction, Array | str]]:
    """Compile one module for a group of instructions and run each of its kernels.

    Yields instruction and results. Raises DriverError when the driver refuses the module or a launch.
    """
    with ExitStack() as held:
        module = held.enter_context(gpu.module(module_text(group).encode() + b"\0"))
        for place, instruction in enumerate(group):
            with ExitStack() as buffers:
                source = buffers.enter_context(gpu.memory(read_by(instruction)))
                empty = written_by(instruction)
                target = buffers.enter_context(gpu.memory(empty))
                gpu.launch(module, Launch(f"k{place}"), [bytes(source), bytes(target)])
                yield instruction, gpu.read(target, empty)


def run(gpu: Gpu, group: Sequence[Instruction]) -> Iterator[tuple[Instruction, Array | str]]:
    """Run instructions on the GPU; yield each with its results, or with the driver's message if it refused the
    instruction.

    A module that is refused is halved until the instruction at fault is alone.
    """
    if not group:
        return
    done = 0
    try:
        for pair in _run_module(gpu, group):
            done += 1
            yield pair
    except DriverError as error:
        if len(group) == 1 or done:
            # Once a launch has failed the context is gone, and with it all that follows.
            yield from ((one, str(error)) for one in group[done:])
            return
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            yield from run(gpu, half)


def record(out: Path) -> int:
    """Ask the GPU about every instruction and write what it computed: rows as JSON, whole results as .npz.

    out: a folder. Returns 0 unless no instruction has a result.
    """
    began = time.monotonic()
    device, driver = read_device()
    gpu = Gpu()
    rows: dict[str, Json] = {}
    whole: dict[str, Array] = {}
    every = instructions()
    for start in range(0, len(every), GROUP):
        for instruction, result in run(gpu, every[start : start + GROUP]):
            if isinstance(result, str):
                rows[instruction.name] = {"error": result}
                print(f"{instruction.name}: {result}")
            else:
                rows[instruction.name] = result_row(instruction, result)
                whole[instruction.name] = result
    # The whole results first: nothing that the emulator does can lose them.
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "arithmetic.npz", **cast("Json", whole))
    for instruction in every:
        if instruction.name in whole and not is_exact(instruction):
            rows[instruction.name] |= errors_row(instruction, whole[instruction.name])
    header = {**made_of("arithmetic_h200"), "device": device, "driver": driver, "numpy": np.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    (out / RESULTS.name).write_text(f'{json.dumps(header)[:-1]}, "instructions": {{\n{lines}\n}}}}\n')
    seconds = time.monotonic() - began
    print(f"{len(rows)} instructions on {device} in {seconds:.1f} s: {len(rows) - len(whole)} without results")
    return compare(whole) if whole else 1


# -- comparing whole results


def _log2(value: float) -> float:
    """Return the base-2 logarithm of a value, rounded to a tenth; at least -99, which stands for zero."""
    return round(float(np.log2(max(value, 2.0**-99))), 1)


def _example(form: Form, words: Array, expected: Array, place: int) -> str:
    """A line that shows one input tuple (its index is place), what the GPU computed for it, and what the
    emulator did.
    """
    given = " ".join(f"{word:#x}" for word in operands(form.inputs)[:, place])
    got, wanted = (" ".join(f"{word:#x}" for word in column[:, place]) for column in (words, expected))
    return f"    {given}: {got}, the emulator {wanted}"


def _report_form(form: Form, words: Array, expected: Array) -> list[str]:
    """Lines on where the GPU's results (words) and the emulator's (expected) differ for a scalar or packed instruction;
    none where an exact one does not.
    """
    if form.bound is not None:
        missed, largest = misses(form, words, expected, defined(form))
        what = f"{missed.sum()} of {TUPLES} out of bounds, else at most {largest} steps of {form.bound.ulp}"
        return [
            f"{form.name}: {what}",
            *(_example(form, words, expected, at) for at in np.flatnonzero(missed)[:EXAMPLES]),
        ]
    raw = (words != expected).any(0)
    real = (settled(form, words) != settled(form, expected)).any(0)
    if not raw.any():
        return []
    kind = f"{real.sum()} differ" if real.any() else f"{raw.sum()} differ in NaN or where nothing is said"
    shown = np.flatnonzero(real if real.any() else raw)[:EXAMPLES]
    return [f"{form.name}: {kind}", *(_example(form, words, expected, at) for at in shown)]


def _report_product(matrix: Product, words: Array, expected: Array) -> list[str]:
    """A line on how a matrix product differs between GPU (words) and emulator (expected); none where an exact one does
    not.
    """
    if is_exact(matrix):
        wrong = int((words != expected).sum())
        return [f"{matrix.name}: {wrong} of {words.size} words differ"] if wrong else []
    row = errors_row(matrix, words)
    return [f"{matrix.name}: {row['missed']} out of bounds, error 2**{row['largest']} of 2**{_log2(matrix.bound)}"]


def compare(whole: Mapping[str, Array]) -> int:
    """Print, by instruction and with examples, where the emulator's results differ from the GPU's. Returns 0.

    whole: the GPU's results. Of inexact instructions the errors are printed in any case.
    """
    compared = 0
    for instruction in instructions():
        if instruction.name not in whole:
            continue
        compared += 1
        words, expected = whole[instruction.name], emulate(instruction)
        lines = (
            _report_form(instruction, words, expected)
            if isinstance(instruction, Form)
            else _report_product(instruction, words, expected)
        )
        if lines:
            print("\n".join(lines))
    print(f"{compared} compared")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Record on a GPU, or compare whole results with the emulator, as the command line says.

    Returns the exit status: 2 when the file cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.arithmetic")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("record").add_argument("--out", type=Path, default=RESULTS.parent)
    actions.add_parser("compare").add_argument("results", type=Path)
    options = parser.parse_args(arguments)
    if options.action == "record":
        return record(options.out)
    try:
        with np.load(options.results) as held:
            whole = {name: held[name] for name in held.files}
    except (OSError, EOFError, ValueError, AttributeError, BadZipFile) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        command = "python3 -m bench.arithmetic record --out out"
        print(f"{options.results}: cannot be read: {said}; `{command}` makes arithmetic.npz", file=sys.stderr)
        return 2
    return compare(whole)


if __name__ == "__main__":
    sys.exit(main())
