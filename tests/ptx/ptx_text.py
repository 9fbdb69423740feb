"""PTX and probe files for tests, and what is looked up in twins."""

from __future__ import annotations

from neutrino.abi.reasons import Reason
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule

HEAD = ".version {version}\n.target {arch}\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %rd<16>; .reg .f64 %d<4>;\n"
    "ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, %r1;\n"
)
FIRST_LINE = 9
"""Line of the first line of ``kernel``'s body."""


def kernel(body: str, *, before: str = "", arch: str = "sm_90", version: str = "8.0") -> str:
    """A module with one kernel ``k``; registers %p %h %r %f %rd %d are declared."""
    head = HEAD.format(version=version, arch=arch)
    return f"{head}{before}\n.visible .entry k(.param .u64 a, .param .u32 n)\n{{\n{REGISTERS}{body}\n}}\n"


def probe(position: str, *, level: str = "thread", **sides: str) -> str:
    """One probe of a probe file. sides: before, after."""
    snippets = "\n".join(f"{side} = '''{snippet}'''" for side, snippet in sides.items())
    return f'[probe.p]\nposition = "{position}"\nlevel = "{level}"\n{snippets}\n'


def array(fields: list[str], size: int, *, cap: int = 1, level: str = "thread") -> str:
    """An array map ``M`` with fields f0, f1 …"""
    data = ", ".join(f'f{index} = "{kind}"' for index, kind in enumerate(fields))
    return f'[map.M]\ntype = "array"\nlevel = "{level}"\nsize = {size}\ncap = {cap}\ndata = {{ {data} }}\n'


def only(twins: TwinModule) -> TwinKernel:
    """The one twin, nothing skipped."""
    assert not twins.skipped, twins.skipped
    (twin,) = twins.kernels
    return twin


def skipped(twins: TwinModule) -> tuple[Reason, str]:
    """Reason and detail of the one kernel, which got no twin."""
    assert not twins.kernels
    (skip,) = twins.skipped
    return skip.reason, skip.detail


def lines(twin: TwinKernel) -> list[str]:
    """The twin's lines, with the prefix of private registers cut down to ``%N``."""
    return [line.strip().replace("%neutrino_", "%N") for line in twin.probed_text.split("\n")]
