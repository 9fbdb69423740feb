"""Why a launch ran, or a kernel runs, its original: numbers in files, words in events, texts for people, remedies."""

from __future__ import annotations

import enum


class Reason(enum.IntEnum):
    """Why a launch ran, or a kernel runs, its original. The order is part of the file format."""

    PROBED = 0
    NO_PTX = 1
    NOT_SELECTED = 2
    NO_SITE = 3
    VARIANT = 4
    UNSUPPORTED = 5
    PARAMETERS = 6
    NUMERICS = 7
    ASSEMBLER = 8
    VENDOR = 9
    HELPER = 10
    LOAD = 11
    GRAPH = 12
    LAUNCH_FORM = 13
    OCCUPANCY = 14
    MAP_SIZE = 15
    POOL_FULL = 16
    CONTEXT = 17
    REFUSED = 18
    TABLE_FULL = 19
    ENDING = 20
    NOT_PATCHED = 21
    LOCAL_MEMORY = 22
    NOT_READY = 23

    @property
    def word(self) -> str:
        """The word for this reason (why a launch was or was not probed) in ``events.jsonl`` and in reports."""
        return self.name.lower().replace("_", "-")


CHOICE_OPTIONS = "-k, --filter, --rank, --device, --launches, --every, --range, --duration, --benchmark or neutrino-ctl"
"""What chooses what is probed: options of ``neutrino``, and a command."""

REASON_TEXT: dict[Reason, str] = {
    Reason.PROBED: "the twin ran",
    Reason.NO_PTX: "the image holds machine code only",
    Reason.NOT_SELECTED: f"not chosen by {CHOICE_OPTIONS}",
    Reason.NO_SITE: "no instruction matches the probe",
    Reason.VARIANT: "the PTX is for another architecture than the machine code that runs",
    Reason.UNSUPPORTED: "the kernel or a probe needs something that twins do not support",
    Reason.PARAMETERS: "no room for the probe block in the parameter space",
    Reason.NUMERICS: "the probes would change how the assembler fuses arithmetic",
    Reason.ASSEMBLER: "the assembler refused or warned, or is not on this machine",
    Reason.VENDOR: "a vendor-licensed library, never rewritten",
    Reason.HELPER: "the helper that makes twins was not running or took too long",
    Reason.LOAD: "the driver did not load the twin, or a variable has no address",
    Reason.GRAPH: "a node of a graph that is launched or changed from the device, runs repeatedly and keeps records, "
    "or cannot get its twin for some replays only",
    Reason.LAUNCH_FORM: "loaded before Neutrino was in the process, or launched by a call that is not supported yet",
    Reason.OCCUPANCY: "the twin would fit fewer blocks on a multiprocessor than the original",
    Reason.MAP_SIZE: "the launch needs more map memory than the pool has",
    Reason.POOL_FULL: "the pool was full at the launch",
    Reason.CONTEXT: "the context had no pool yet",
    Reason.REFUSED: "the driver refused the launch, or the context was lost",
    Reason.TABLE_FULL: "the launch table was full at the launch",
    Reason.ENDING: "the trace had ended",
    Reason.NOT_PATCHED: "no probe was given, and the kernel's file has no usable twin of it",
    Reason.LOCAL_MEMORY: "the twin needs more local memory than the context has set aside and the original needs",
    Reason.NOT_READY: "launched before its twin was ready, which --no-wait, --when launch and --hot do not wait for",
}

_OF_MACHINE_CODE = (
    "on sm_90 the machine code can be probed, with one of block_sched and gmem_bytes in a run, or with "
    "--machine-code unproven with others"
)
"""What can be done where there is no PTX. ``tests/patched_files/test_machine_code.py`` holds it against the twins."""

REASON_REMEDY: dict[Reason, str] = {
    Reason.NO_PTX: f"{_OF_MACHINE_CODE}; else keep PTX with nvcc -gencode arch=compute_XX,code=compute_XX, in CuPy "
    "with CUPY_COMPILE_WITH_PTX=1, in JAX with XLA_FLAGS=--xla_gpu_generate_line_info=true, in CuTe DSL by --ptx",
    Reason.NOT_SELECTED: "that option left out, or wider",
    Reason.NO_SITE: "neutrino-probe sites shows what a probe matches",
    Reason.VARIANT: f"--retarget, where it is proven to be the same program; {_OF_MACHINE_CODE}",
    Reason.UNSUPPORTED: "a probe or tracepoint that does without it; with machine code one probe in a run",
    Reason.PARAMETERS: "probes with fewer maps",
    Reason.NUMERICS: "a narrower tracepoint, or a probe that neither divides nor computes with floating-point numbers",
    Reason.ASSEMBLER: "a ptxas if there is none: pip install 'neutrino-gpu[cuda]'; else a narrower tracepoint",
    Reason.VENDOR: "the same operation from code with PTX: CUTLASS, Triton, torch.compile with Triton's GEMM",
    Reason.HELPER: "a longer --timeout, if it took too long",
    Reason.LOAD: "probes that need fewer registers or less memory, or fewer kernels, by -k",
    Reason.GRAPH: "what runs repeatedly is recorded in maps that add up: sum, histogram, min, max",
    Reason.LAUNCH_FORM: "if it was loaded before: neutrino.install() before the framework is imported",
    Reason.OCCUPANCY: "probes that need fewer registers",
    Reason.MAP_SIZE: "a larger --max-device-memory, or maps with less per thread or warp",
    Reason.POOL_FULL: "a larger --max-device-memory",
    Reason.CONTEXT: "a few launches before those to be measured: only the first of a context are concerned",
    Reason.REFUSED: "a run without probes: a launch that fails there, too, is the program's own fault",
    Reason.TABLE_FULL: "fewer kernels, by -k",
    Reason.ENDING: "no launches while the process exits",
    Reason.LOCAL_MEMORY: "probes that need fewer registers, so that fewer are spilled",
    Reason.NOT_PATCHED: "neutrino-patch the file, or neutrino -p PROBE",
    Reason.NOT_READY: "run again without these options: twins that were made are cached now",
}
"""What the user can do about a reason: about all but that a twin ran."""

PROBE_REMEDY: dict[Reason, str] = {
    Reason.UNSUPPORTED: "other operands, or a tracepoint without such instructions (neutrino-probe sites shows them)",
    Reason.NUMERICS: "a narrower tracepoint, or a probe that neither divides nor computes with floating-point numbers",
    Reason.ASSEMBLER: "a narrower tracepoint",
}
"""What the user can do about a probe that is left out of a kernel, if nothing better is known."""
