"""Words of other languages and tools for what probes have, for hints."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from neutrino.language.vocabulary import ELSEWHERE, FUNCTIONS, HELPERS, REDUCTIONS, SITE_OPERANDS, TYPES
from neutrino.probing.nearest import nearest

VALUES = {
    "size": "BYTES", "width": "BYTES", "nbytes": "BYTES", "length": "BYTES", "address": "ADDR", "addr": "ADDR",
    "ptr": "ADDR", "pointer": "ADDR", "result": "OUT", "retval": "OUT", "dst": "OUT",
    "src": "IN1", "arg0": "IN1", "arg1": "IN2", "arg2": "IN3", "duration": "elapsed", "cycles": "elapsed",
    "runtime": "elapsed", "timestamp": "time", "now": "time", "ns": "time", "cpu": "smid",
    "core": "smid", "cu": "smid", "cuid": "smid", "instruction": "site", "opcode": "site", "ip": "site",
    "source": "line", "wave": "warpid", "warp": "warpid",
}  # fmt: skip
"""What others call a value of an instruction, in lower case → its word here."""
_VALUE = "OUT is what the instruction gives, IN1, IN2 … what it takes"
OF_VALUES = {
    "value": _VALUE, "val": _VALUE, "data": _VALUE,
    "latency": "kernel { … } has elapsed; how long instructions take: -p latency (loads), -p barrier_wait",
    "file": "line is the source line, which is shown with its file",
}  # fmt: skip
"""What others call something that no one word has, in lower case → what there is."""
RESULTS = frozenset({"kernel", "kernel_name", "name", "func", "function", "probe", "pid", "comm", "process"})
"""What others make results of each of."""
OTHER_FUNCTIONS = {
    "mean": "avg", "average": "avg", "stats": "avg", "quantize": "hist", "histogram": "hist", "log2": "hist",
    "lquantize": "lhist", "linear": "lhist", "top": "topk", "total": "sum", "add": "sum", "minimum": "min",
    "least": "min", "maximum": "max", "greatest": "max", "counter": "count", "inc": "count", "record": "save",
    "append": "save", "log": "save", "push": "save", "trace": "print", "echo": "print", "median": "hist",
    "percentile": "hist", "quantile": "hist", "percentiles": "hist", "p50": "hist", "p90": "hist", "p99": "hist",
    "distribution": "hist", "buckets": "hist",
}  # fmt: skip
"""What others call the functions that make maps, in lower case → their names here."""
OF_MAPS = frozenset({"clear", "zero", "reset", "delete", "len", "has_key"})
"""What others do with maps, or with the run, from within a probe."""


def hint_of(node: ast.expr, alias: str) -> str:
    """Return what to write instead of an expression that a probe cannot have, for a hint; "" if nothing is known.

    alias: the name of ``neutrino.language``.
    """
    if isinstance(node, ast.Tuple):
        return "one value is here: for keys join them, as in ctaid * 1024 + tid; compare one by one: x == 4 or x == 8"
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))):
        return "a probe has numbers alone; a source line is a position, as in saxpy.cu:42, and -k selects kernels"
    if isinstance(node, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)):
        return f"records go into a map, a class under @Map(…); {alias}.array(…) in a probe has a few elements"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in ELSEWHERE:
        # nl.threadIdx.x
        return f"did you mean {alias}.{ELSEWHERE[node.value.attr]}.{node.attr}?"
    if isinstance(node, ast.NamedExpr):
        return "assign it in a statement before"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id.lower() == alias.lower():
        return f"the language is called {alias} here"
    if isinstance(node, ast.Attribute) and node.attr in ("w", "X", "Y", "Z"):
        return "places have x, y and z"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id != alias:
        return f"a map is saved to, and not read; a register at the top keeps a value: count: {alias}.u32 = 0"
    return ""


def hint_of_attribute(name: str, alias: str) -> str:
    """Return what to write instead of an attribute that the language does not have, for a hint. alias: its name."""
    guess = _meant(name)
    if name in FUNCTIONS or name in HELPERS:
        return f"call it: {alias}.{name}({', '.join(['…'] * FUNCTIONS.get(name, 0))})"
    if guess:
        return f"did you mean {alias}.{guess}?"
    return "the values of an instruction are " + ", ".join(f"{alias}.{name}" for name in SITE_OPERANDS)


def _meant(name: str, others: Sequence[str] = ()) -> str | None:
    """Return the name of the language that may be meant; None if none is similar. others: more of its names."""
    known = [*SITE_OPERANDS, *HELPERS, *FUNCTIONS, *TYPES, *others]
    word = ELSEWHERE.get(name) or VALUES.get(name.lower(), "").lower()
    return word if word in known else nearest(name, known)


def hint_of_call(function: ast.expr, alias: str) -> str:
    """Return what to write instead of a call that a probe cannot have, for a hint. alias: the language's name."""
    if isinstance(function, ast.Name) and function.id in {"min", "max", "abs"}:
        return f"write {alias}.{function.id}(…)"
    others = ["is_global", "has", "bits", "param"]
    if isinstance(function, ast.Attribute) and function.attr in HELPERS and isinstance(function.value, ast.Name):
        return f"did you mean {alias}.{function.attr}()?"
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == alias:
        name = function.attr
        guess = _meant(name, others)
        if guess and guess != name:
            return f"did you mean {alias}.{guess}?"
    names = ["clock", "time", "cuid", "smid", *FUNCTIONS, *others]
    names += [f"warp.{name}" for name in (*REDUCTIONS, "shuffle")]
    return "the language has " + ", ".join(f"{alias}.{name}()" for name in names)


def hint_of_target(node: ast.expr, maps: Collection[str]) -> str:
    """Return what to write instead of something that a probe cannot assign to, for a hint; "" if nothing is known.

    maps: their names.
    """
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name) and node.id in maps:
        return f"a map is saved to, as a whole record: {node.id}.save(…)"
    if hasattr(node, "map_name"):
        return "a map has one key: join several, as in @name[ctaid * 1024 + tid]"
    return ""
