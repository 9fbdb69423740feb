"""A process without the libraries that a tool has loaded into this one: to be what the tool does not follow.

Tools such as ``compute-sanitizer`` have a library loaded into each process of a program (LD_PRELOAD), which asks the
tool before each fork, and ends the process if the tool does not answer: so it did with the listener, which closes all
descriptors that it does not know. What makes twins uses no GPU, and nobody wants to see it examined. It leaves the
library by becoming another program, and by the system call itself: the library's ``execve`` would load it again.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

_SYS_EXECVE = 59
"""Of x86-64."""
_LOADED = ("LD_PRELOAD", "LD_AUDIT")
"""By which the dynamic loader loads libraries that a program does not name: glibc, ld.so(8)."""
_OF_TOOLS = (
    "CUDA_INJECTION", "NVTX_INJECTION", "NVIDIA-PROCESS-", "NVIDIA_PROCESS_INJECTION", "NV_SANITIZER_", "NV_TPS_",
    "QUADD_INJECTION",
)  # fmt: skip
"""How variables begin by which NVIDIA's tools follow processes: Compute Sanitizer 2026.4 and Nsight, as seen in the
environment of what they start. Compute Sanitizer's library removes LD_PRELOAD from the environment that the program
sees."""
_RESUME = (
    "import sys; sys.path[:] = sys.argv[2:]; from neutrino.run.clean_process import resume; resume(int(sys.argv[1]))"
)
_State = TypeVar("_State")


def is_injected(environment: Mapping[str, str]) -> bool:
    """Return whether a tool may have loaded libraries into this process, by the environment that it was started with.
    """
    return any(environment.get(name) for name in _LOADED) or any(name.startswith(_OF_TOOLS) for name in environment)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what loads libraries of tools."""
    return {
        name: value for name, value in environment.items() if name not in _LOADED and not name.startswith(_OF_TOOLS)
    }


def exec_clean(function: Callable[[_State], object], state: _State, descriptors: Iterable[int]) -> None:
    """Go on as a new process image in which no tool has loaded a library: call a function of a module with state.

    descriptors: which stay open, under their numbers. Returns only if that is not possible.
    """
    kept = os.memfd_create("neutrino-resume")
    with open(kept, "wb", closefd=False) as file:
        pickle.dump((function, state, tuple(descriptors)), file)
    os.lseek(kept, 0, os.SEEK_SET)
    for descriptor in (kept, *descriptors):
        os.set_inheritable(descriptor, True)
    # Paths are those of this process: the new one finds the same modules.
    words = [sys.executable, "-c", _RESUME, str(kept), *map(os.path.abspath, sys.path)]
    variables = [f"{name}={value}" for name, value in clean(os.environ).items()]
    ctypes.CDLL(None).syscall(_SYS_EXECVE, os.fsencode(sys.executable), _strings(words), _strings(variables))
    os.close(kept)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def _strings(texts: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Return a list of strings as execve(2) takes it, with NULL at its end."""
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def resume(kept: int) -> None:
    """Go on in the new process image. kept: descriptor of what ``exec_clean`` has left."""
    with open(kept, "rb") as file:
        function, state, descriptors = pickle.load(file)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    function(state)
