"""Words of other languages and tools for what probes have, for hints."""

from __future__ import annotations

import ast

VALUES = {
    "size": "BYTES", "width": "BYTES", "nbytes": "BYTES", "length": "BYTES", "address": "ADDR", "addr": "ADDR",
    "ptr": "ADDR", "pointer": "ADDR", "value": "OUT", "val": "OUT", "result": "OUT", "retval": "OUT", "dst": "OUT",
    "src": "IN1", "arg0": "IN1", "arg1": "IN2", "arg2": "IN3", "duration": "elapsed", "cycles": "elapsed",
    "runtime": "elapsed", "latency": "elapsed", "timestamp": "time", "now": "time", "ns": "time", "cpu": "smid",
    "core": "smid", "cu": "smid", "cuid": "smid", "instruction": "site", "opcode": "site", "ip": "site",
    "source": "line", "wave": "warpid", "warp": "warpid",
}  # fmt: skip
"""What others call a value of an instruction, in lower case → its word here."""
RESULTS = frozenset({"kernel", "kernel_name", "name", "func", "function", "probe", "pid", "comm", "process"})
"""What others make results of each of."""
OTHER_FUNCTIONS = {
    "mean": "avg", "average": "avg", "stats": "avg", "quantize": "hist", "histogram": "hist", "log2": "hist",
    "lquantize": "lhist", "linear": "lhist", "top": "topk", "total": "sum", "add": "sum", "minimum": "min",
    "least": "min", "maximum": "max", "greatest": "max", "counter": "count", "inc": "count", "record": "save",
    "append": "save", "log": "save", "push": "save", "trace": "print", "echo": "print",
}  # fmt: skip
"""What others call the functions that make maps, in lower case → their names here."""
OF_MAPS = frozenset({"clear", "zero", "reset", "delete", "len", "has_key"})
"""What others do with maps, or with the run, from within a probe."""


def hint_of(node: ast.expr) -> str:
    """Return what to write instead of an expression that a probe cannot have, for a hint; "" if nothing is known."""
    if isinstance(node, ast.Tuple):
        return "one value is here: for keys join them, as in ctaid * 1024 + tid; compare one by one: x == 4 or x == 8"
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        return "a probe has numbers alone; a source line is a position, as in saxpy.cu:42, and -k selects kernels"
    if isinstance(node, ast.Attribute) and node.attr in ("w", "X", "Y", "Z"):
        return "places have x, y and z"
    return ""
