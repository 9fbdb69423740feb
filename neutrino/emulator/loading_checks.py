"""Names in PTX that an assembler would refuse when a module is loaded, and the interpreter only at a launch."""

from __future__ import annotations

from neutrino.emulator.code import ModuleCode
from neutrino.emulator.provided import PROVIDED
from neutrino.errors import PtxRefusedError

# PTX ISA 9.0, section 9.7 (instructions), without what follows the first dot.
_MNEMONICS = frozenset((
    "abs", "activemask", "add", "addc", "alloca", "and", "applypriority", "atom", "bar", "barrier", "bfe", "bfi",
    "bfind", "bmsk", "bra", "brev", "brkpt", "brx", "call", "clz", "clusterlaunchcontrol", "cnot", "copysign", "cos",
    "cp", "createpolicy", "cvt", "cvta", "discard", "div", "dp2a", "dp4a", "elect", "ex2", "exit", "fabric", "fence",
    "fma", "fns", "getctarank", "griddepcontrol", "isspacep", "istypep", "ld", "ldmatrix", "ldu", "lg2", "lop3", "mad",
    "mad24", "madc", "mapa", "match", "max", "mbarrier", "membar", "min", "mma", "mov", "movmatrix", "mul", "mul24",
    "multimem", "nanosleep", "neg", "not", "or", "pmevent", "popc", "prefetch", "prefetchu", "prmt", "rcp", "red",
    "redux", "rem", "ret", "rsqrt", "sad", "selp", "set", "setmaxnreg", "setp", "shf", "shfl", "shl", "shr", "sin",
    "slct", "sqrt", "st", "stackrestore", "stacksave", "stmatrix", "sub", "subc", "suld", "suq", "sured", "sust",
    "szext", "tanh", "tcgen05", "tensormap", "testp", "tex", "tld4", "trap", "txq", "vabsdiff", "vabsdiff2",
    "vabsdiff4", "vadd", "vadd2", "vadd4", "vavrg2", "vavrg4", "vmad", "vmax", "vmax2", "vmax4", "vmin", "vmin2",
    "vmin4", "vote", "vset", "vset2", "vset4", "vshl", "vshr", "vsub", "vsub2", "vsub4", "wgmma", "wmma", "xor",
))  # fmt: skip


def check_names(code: ModuleCode) -> None:
    """Check the mnemonics of all statements of a module, and the names of the functions that they call.

    A GPU's driver assembles a module when it is loaded, and refuses such names then; here they would otherwise show
    only when a kernel is launched. Raise PtxRefusedError if a mnemonic is no PTX instruction, or a called function has
    no body.
    """
    for statement in code.statements:
        if statement.opcode.partition(".")[0] not in _MNEMONICS:
            raise PtxRefusedError(statement.line, statement.text, f"PTX has no instruction {statement.opcode}")
    for name, function in code.texts.items():
        # A declaration calls nothing.
        if function.items is None:
            continue
        for callee in sorted(code.program(name).callees):
            definition = code.texts.get(code.resolved_name(callee))
            # Functions that the device itself provides have no body in any module.
            if callee not in PROVIDED and (definition is None or definition.items is None):
                raise PtxRefusedError(function.line, function.text, f"{name} calls {callee}, which has no body")
