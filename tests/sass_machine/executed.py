"""Records of twins, held against what the interpreter executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from neutrino.tracing.views import MapView
from tests.sass_machine.lanes import LANES
from tests.sass_machine.launching import records_of
from tests.sass_machine.machine import Launch

_FIELDS = {"LDG": "load", "STG": "store", "ATOMG": "atomic", "REDG": "atomic", "RED": "atomic", "LDGSTS": "async_"}
_KINDS = {"LDG": 0, "STG": 1, "LDGSTS": 4}


_CLASSES = {
    "load": "LD LDG LDS LDL LDC ULDC LDSM LDGSTS", "store": "ST STG STS STL STSM LDGSTS",
    "atomic": "ATOM ATOMG ATOMS RED REDG",
    "barrier": "BAR DEPBAR WARPSYNC MEMBAR FENCE", "branch": "BRA BRX CALL RET EXIT", "tensor": "HMMA IMMA",
    "convert": "F2F F2I I2F I2FP I2I I2IP F2FP FRND", "special": "MUFU",
}  # fmt: skip
"""Field of inst_count → opcodes, as nvdisasm names them; each instruction is in all besides."""
_MIX = {
    "integer": "IADD3 UIADD3 VIADD IMAD UIMAD LEA ULEA IABS IMNMX VIMNMX VIMNMX3 VIADDMNMX POPC UPOPC BREV FLO UFLO "
    "BMSK UBMSK SGXT IDP", "fp16": "HADD2 HMUL2 HFMA2 HMNMX2", "fp32": "FADD FMUL FFMA FMNMX", "fp64": "DADD DMUL DFMA",
    "special": "MUFU", "compare": "ISETP UISETP FSETP DSETP HSETP2 HSET2 FSET FCHK SEL USEL FSEL",
    "logic": "LOP3 ULOP3 PLOP3 UPLOP3 SHF USHF", "move": "MOV UMOV S2R S2UR CS2R R2UR P2R R2P UP2UR B2R PRMT UPRMT",
    "convert": _CLASSES["convert"], "load": "LD LDG LDS LDL LDC ULDC LDSM", "store": "ST STG STS STL STSM",
    "copy": "LDGSTS", "atomic": _CLASSES["atomic"], "lanes": "SHFL VOTE VOTEU MATCH REDUX",
    "barrier": _CLASSES["barrier"], "branch": _CLASSES["branch"], "tensor": _CLASSES["tensor"],
}  # fmt: skip
COUNTING = {"inst_count": _CLASSES, "opcode_mix": _MIX}
"""Probe → field of its record → opcodes."""


def counted(probe: str, plain: Launch) -> dict[str, int]:
    """What a probe should count of a launch of the kernel, by field, without zeros."""
    fields = {name: frozenset(names.split()) for name, names in COUNTING[probe].items()}
    found: Counter[str] = Counter()
    for place, lanes in plain.lanes_at.items():
        parsed = plain.program.step(place).parsed
        name = parsed.name
        # ptxas moves registers by products with zero.
        multiplies = name in ("IMAD", "HFMA2") and not {"X", "WIDE"} & {*parsed.parts}
        if multiplies and parsed.operands[1].text.lstrip("-") == "RZ":
            name = "MOV"
        if name == "HADD2" and "F32" in parsed.parts:
            name = "F2F"
        found["all"] += lanes
        for field, names in fields.items():
            found[field] += lanes * (name in names)
    return {name: count for name, count in found.items() if count}


def judge_records(probe: str, plain: Launch, launch: Launch, views: Mapping[str, MapView]) -> Iterator[str]:
    """What is wrong with a twin's records. plain, launch: of the kernel, and of the twin, whose records views are."""
    if probe == "block_sched":
        found = views["BlockSched"].valid().reshape(-1)
        warps = -(-prod(launch.block) // LANES)
        if len(found) != warps * prod(launch.grid):
            yield f"has {len(found)} records"
        for number, record in enumerate(found):
            block, warp = divmod(number, warps)
            end = launch.ends[launch.index(block), warp]
            start, elapsed = int(record["start"]), int(record["elapsed"])
            late, early = start - launch.begin(warp), end - start - elapsed
            if not (0 <= late <= 64 and 0 <= early <= 600 and record["cuid"] == launch.multiprocessor(block)):
                yield f"warp {number} is {record}, from {launch.begin(warp)} to {end}"
    elif probe in COUNTING:
        (found,) = next(iter(views.values())).valid().reshape(-1)
        have = {name: int(found[name]) for name in found.dtype.names if found[name]}
        wanted = counted(probe, plain)
        if have != wanted:
            differ = {name: (have.get(name, 0), wanted.get(name, 0)) for name in {*have, *wanted}}
            yield f"counts {({name: pair for name, pair in differ.items() if pair[0] != pair[1]})}"
    elif probe == "gmem_bytes":
        wanted = Counter()
        for name, places, size in plain.accesses:
            wanted[_FIELDS[name]] += len(places) * size
        (found,) = views["GmemBytes"].valid().reshape(-1)
        have = {name: int(found[name]) for name in found.dtype.names if found[name]}
        if have != {name: size for name, size in wanted.items() if size}:
            yield f"counts {have}, not {dict(wanted)}"
    else:
        wanted = sorted(
            (int(place), size, _KINDS[name]) for name, places, size in plain.accesses for place in places
        )  # fmt: skip
        have = [(row[0], row[1], row[2]) for row in records_of(views)["GlobalAccesses"]]
        if have != wanted:
            yield f"has {len(have)} records {have[:2]}, not {len(wanted)} {wanted[:2]}"
