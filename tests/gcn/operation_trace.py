"""What the shipped probes of results and barriers must record: found from an original's instructions, one by one.

The interpreter runs the original; after each instruction NumPy reads what it has written. Which instructions are which
operations is said here anew, by their texts alone, and shares nothing with ``neutrino.gcn``; of divisions, too, whose
steps are followed from where their operands are brought into range.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.wave import Wave
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.snippets.meaning import typed
from neutrino.maker.patcher import patch_image
from neutrino.maps.declaration import Layout
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace
from neutrino.tracing.manifest import read_manifest
from neutrino.tracing.views import MapView
from neutrino.tracing.written import OneLaunch, write_trace
from neutrino.twins.able import able_probes
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.gcn.branch_trace import BranchTrace, HasProgram
from tests.gcn.probe_model import Shape

Key = tuple[tuple[int, int, int], int]
Floats = npt.NDArray[np.float64]
_LDS = 64 << 10
_SUFFIX = re.compile(r"(_e32|_e64|_dpp8?|_sdwa)+$")
_SINGLE = """add sub subrev mul mul_legacy mul_dx9_zero fma fmac fmaak fmamk fma_mix fma_legacy fma_dx9_zero mad mac
madak madmk mad_legacy div_fixup rcp rcp_iflag sqrt rsq exp log exp_legacy log_legacy sin cos s_exp s_log s_rcp s_rsq
s_sqrt"""
_DOUBLE = "add mul fma fmac div_fixup rcp sqrt rsq"
_HALF = "add sub subrev mul fma fmac fmaak fmamk fma_mixlo fma_mixhi exp s_exp"
_KINDS = {"f32": frozenset(_SINGLE.split()), "f64": frozenset(_DOUBLE.split()), "f16": frozenset(_HALF.split())}
_PAIRS = frozenset({
    "pk_add_f16", "pk_mul_f16", "pk_fma_f16", "pk_fmac_f16", "cvt_pkrtz_f16_f32", "cvt_pk_rtz_f16_f32",
    "cvt_pk_f16_f32",
})  # fmt: skip
_BARRIERS = re.compile(r"s_barrier|s_barrier_wait .*")
_REGISTERS = re.compile(r"([vs])(?:(\d+)(\.[lh])?|\[(\d+):(\d+)\])")


def kind_of(name: str) -> str:
    """What a mnemonic without its encoding computes for ``value_watch``: ``f32``, ``f16x2`` …; "" for nothing."""
    if not name.startswith(("v_", "s_")):
        return ""
    stem, _, kind = name[2:].rpartition("_")
    stem = stem.removeprefix("dual_")
    if name[2:] in ("cvt_f32_f64", "cvt_f16_f32", "cvt_pk_bf16_f32"):
        return {"cvt_f32_f64": "f32", "cvt_f16_f32": "f16", "cvt_pk_bf16_f32": "bf16x2"}[name[2:]]
    if name[2:] in _PAIRS or name[2:] == "s_cvt_pk_rtz_f16_f32":
        return "f16x2"
    if name[2:] in ("pk_add_f32", "pk_mul_f32", "pk_fma_f32"):
        return "f32x2"
    if name.startswith("s_") and stem not in ("add", "sub", "mul", "fmac", "fmaak", "fmamk"):
        return ""
    return kind if stem in _KINDS.get(kind, ()) else ""


@dataclass
class _Half:
    """An instruction, or a half of one: what it computes, where the result is, and all its registers."""

    name: str
    kind: str
    result: str
    reads: list[str]
    is_high: bool


def halves(text: str) -> list[_Half]:
    """Take the text of an instruction apart."""
    found = []
    for part in text.split(" :: "):
        mnemonic, _, rest = part.partition(" ")
        name = _SUFFIX.sub("", mnemonic)
        words = [word.strip() for word in rest.split(",")]
        flags = re.search(r"op_sel:\[([\d,]+)\]", rest)
        is_high = "mixhi" in name or "dst_sel:WORD_1" in rest or words[0].endswith(".h")
        if flags is not None and "mix" not in name and "_pk" not in name:
            is_high = is_high or flags[1].split(",")[-1] == "1"
        reads = re.findall(r"\bv(?:\d+|\[\d+:\d+\])", " ".join(words[1:]))
        if re.search("fmac|_mac", name):
            reads += re.findall(r"\bv(?:\d+|\[\d+:\d+\])", words[0])
        found.append(_Half(name, kind_of(name), words[0], reads, is_high))
    return found


def _numbers(word: str) -> range:
    match = _REGISTERS.fullmatch(word)
    if match is None or match[1] != "v":
        return range(0)
    return range(int(match[2] or match[4]), int(match[2] or match[5]) + 1)


@dataclass
class OperationTrace:
    """The observer of an original's launch. results: what threads computed, by offset of the instruction. first: how
    many threads had their first NaN there. order: where some had, in order. barriers: of each wave, the offsets of
    those that it executed."""

    begin: int
    results: dict[int, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    first: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    barriers: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    matrices: Counter[str] = field(default_factory=Counter)
    _texts: list[tuple[int, str, list[_Half]]] = field(default_factory=list)
    _had: dict[Key, Any] = field(default_factory=dict)
    _steps: dict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))
    _last: dict[Key, tuple[int, int, list[_Half], Any]] = field(default_factory=dict)

    def observer(self, loaded: HasProgram, lanes: int) -> OperationTrace:
        """Itself, ready for a program."""
        self._texts = [(one.address - self.begin, one.text or "", halves(one.text or ""))
                       for one in loaded.program(lanes).instructions]  # fmt: skip
        return self

    def __call__(self, wave: Wave, place: int) -> None:
        key = wave.group.index, wave.number
        if key in self._last:
            self._finish(key, wave)
        offset, text, parts = self._texts[place]
        if _BARRIERS.fullmatch(text.strip()) and wave.mask.any():
            self.barriers[key].append(offset)
        if parts[0].name.startswith(("v_mfma", "v_wmma", "v_smfmac", "v_swmmac")) and wave.mask.any():
            self.matrices[text] += 1
        self._last[key] = offset, place, parts, wave.mask.copy()

    def _finish(self, key: Key, wave: Wave) -> None:
        offset, _, parts, mask = self._last.pop(key)
        tainted = self._steps[key]
        before = set(tainted)
        for part in parts:
            numbers = _numbers(part.result) if part.name.startswith("v_") else range(0)
            reads = {number for word in part.reads for number in _numbers(word)}
            if part.name.startswith("v_div_scale"):
                tainted.update(numbers)
                continue
            is_step = not part.name.startswith("v_div_fixup") and bool(reads & before)
            (tainted.update if is_step else tainted.difference_update)(numbers)
            if part.kind and not is_step and mask.any():
                for values in self._values(part, wave, mask):
                    self._note(offset, key, values, mask)

    def _values(self, part: _Half, wave: Wave, mask: Any) -> list[Floats]:
        match = _REGISTERS.fullmatch(part.result.partition(".")[0] if part.result[-2:] in (".l", ".h") else part.result)
        assert match is not None, part
        first = int(match[2] or match[4])
        rows = wave.v if match[1] == "v" else [np.full(wave.lanes, word, np.uint32) for word in wave.s]
        words = [np.asarray(row, np.uint32)[mask] for row in rows[first : first + 2]]
        with np.errstate(all="ignore"):
            if part.kind == "f64":
                return [(words[0].astype(np.uint64) | words[1].astype(np.uint64) << np.uint64(32)).view(np.float64)]
            if part.kind in ("f32", "f32x2"):
                return [word.view(np.float32).astype(np.float64) for word in words[: 1 + (part.kind == "f32x2")]]
            low, high = (words[0] & np.uint32(0xFFFF)).astype(np.uint16), (words[0] >> np.uint32(16)).astype(np.uint16)
            if part.kind == "bf16x2":
                return [(half.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
                        for half in (low, high)]  # fmt: skip
            wide = [half.view(np.float16).astype(np.float64) for half in (low, high)]
        return wide if part.kind == "f16x2" else [wide[part.is_high]]

    def _note(self, offset: int, key: Key, values: Floats, mask: Any) -> None:
        self.results[offset].append(values)
        had = self._had.setdefault(key, np.zeros(mask.size, np.bool_))
        new = np.zeros(mask.size, np.bool_)
        new[mask] = np.isnan(values)
        if (new & ~had).any():
            self.order.append(offset)
        self.first[offset] += int((new & ~had).sum())
        had |= new

    def watched(self) -> tuple[int, int, int, float | None, float | None]:
        """Results, NaNs, infinities, the least and the greatest finite one."""
        every = np.concatenate([np.empty(0), *(values for rows in self.results.values() for values in rows)])
        finite = every[np.isfinite(every)]
        extremes = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
        return every.size, int(np.isnan(every).sum()), int(np.isinf(every).sum()), *extremes


@dataclass
class Probed:
    """A launch with a probe. views: of its maps. sites: offset of the instruction by number. ticks: clocks that waves
    read, in order."""

    views: Mapping[str, MapView]
    sites: Mapping[int, int]
    same: bool
    trace: Any
    ticks: Mapping[Key, list[int]]
    arch: str

    def watched(self) -> tuple[float | None, ...]:
        """What ``value_watch`` has recorded, as ``OperationTrace.watched`` returns it."""
        (counts,) = self.views["ValueCounts"].valid()
        extremes = [view.valid() for view in (self.views["ValueLeast"], self.views["ValueGreatest"])]
        return (
            *(int(counts[name]) for name in ("results", "nan", "infinite")),
            *(float(rows[0][0]) if len(rows) else None for rows in extremes),
        )  # fmt: skip

    def first(self) -> dict[int, int]:
        """What ``nan_finder`` has recorded: how many threads had their first NaN at each offset."""
        return {self.sites[int(row["key"])]: int(row["count"]) for row in self.views["FirstNaN"].valid()}

    def waits(self) -> dict[int, tuple[int, ...]]:
        """What ``barrier_wait`` has recorded: by offset how often, and the sum, least and most of its cycles."""
        return {
            self.sites[int(row["key"])]: tuple(int(row[name]) for name in ("count", "sum", "min", "max"))
            for row in self.views["PerWait"].valid()
        }

    def expected_waits(self) -> dict[int, tuple[int, ...]]:
        """The same by the barriers that the original executed, and by the clocks that the twin has read: each wave's
        two at each of its barriers."""
        reads = 3 if self.arch.startswith("gfx12") else 1
        found: dict[int, list[int]] = defaultdict(list)
        for key, offsets in self.trace.barriers.items():
            ticks = self.ticks[key]
            assert len(ticks) == 2 * reads * len(offsets)
            clocks = [_clock(ticks[at : at + reads]) for at in range(0, len(ticks), reads)]
            for offset, begin, end in zip(offsets, clocks[::2], clocks[1::2], strict=True):
                found[offset].append((end - begin) % 2**32)
        return {offset: (len(each), sum(each), min(each), max(each)) for offset, each in found.items()}


def _clock(ticks: Sequence[int]) -> int:
    """A clock, of one read, or of the upper half, the lower one and the upper one again."""
    if len(ticks) == 1:
        return ticks[0]
    upper, lower, again = ticks
    return again >> 32 << 32 | (lower & 0xFFFFFFFF if upper >> 32 == again >> 32 else 0)


class LeftOutError(Exception):
    """A kernel gets no twin, or nothing in it is a site; the message says why."""


def _launch(
    loaded: LoadedObject, name: str, shape: Shape, arguments: Sequence[Any], packed_to: int, **options: Any
) -> tuple[bytearray, list[tuple[int, int]]]:
    """Put arguments into memory; return them packed, and where buffers are."""
    packed, places = bytearray(), []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            places.append((loaded.memory.put(argument), argument.nbytes))
            value = places[-1][0].to_bytes(8, "little")
        else:
            value = argument.tobytes()
        packed += bytes(-len(packed) % len(value)) + value
    return packed.ljust(packed_to, b"\0"), places


def probed(
    data: bytes, arch: str, kernel: str, probe: str, shape: Shape, arguments: Sequence[Any], folder: Path, *,
    seed: int | None = 3, follow: type[OperationTrace | BranchTrace] = OperationTrace,
) -> Probed:  # fmt: skip
    """Run a kernel of a code object with a probe, and without. follow: what looks on. Raises LeftOutError."""
    folder.mkdir(exist_ok=True, parents=True)
    probes, llvm = load_probes([probe], platform="hip"), find_llvm()
    image = patch_image(data, probes, arch, selection=Selection((f"/^{kernel}$/",)), assembler=None, key=bytes(32))
    entry = read_entry(image, "entry")
    (made,) = [one for one in entry.kernels if one.reason is not Reason.NOT_SELECTED]
    if made.reason is not Reason.PROBED:
        raise LeftOutError(f"{made.reason.value}: {made.detail}")
    manifest = folder / "manifest.json"
    manifest.write_bytes(made.files["manifest.json"])
    maps = read_manifest(manifest).maps
    able, _ = able_probes(GcnTarget(), probes)
    target = code_object_functions(data, "here").target
    (plan,) = GcnTwins(CodeObjectSource(0, target, data), typed(able)).plan([kernel]).kernels
    function = plan.function

    original = LoadedObject(data, Memory(64 << 20), llvm.disassemble)
    lds = _LDS - original.kernels[kernel].descriptor.lds
    packed, places = _launch(original, kernel, shape, arguments, 0)
    trace = follow(function.address)
    trace.observer(original, function.wave)
    original.run(kernel, shape.grid, shape.block, bytes(packed), observer=trace, dynamic_lds=lds, seed=seed)
    before = [original.memory.read(at, size) for at, size in places]

    logs = [one for one in maps if one.kind.layout is Layout.CHUNKS]
    launch = LaunchMemory(maps, shape.grid, shape.block, made.lanes, 1 << 14 if logs else 0)
    twin = LoadedObject(entry.images[made.image], Memory(64 << 20), llvm.disassemble)
    packed, places = _launch(twin, made.twin, shape, arguments, twin.kernels[made.twin].descriptor.kernarg)
    records = twin.memory.put(bytes(launch.size + 64))
    block = launch.probe_block(records, made.block_size)
    packed[made.block_offset : made.block_offset + len(block)] = block
    ticks: dict[Key, list[int]] = defaultdict(list)
    usual = Wave.tick

    def tick(wave: Wave) -> int:
        ticks[wave.group.index, wave.number].append(usual(wave))
        return ticks[wave.group.index, wave.number][-1]

    Wave.tick = tick  # type: ignore[method-assign]
    try:
        twin.run(made.twin, shape.grid, shape.block, bytes(packed), dynamic_lds=lds, seed=seed, poison=4, checks=True)
    finally:
        Wave.tick = usual  # type: ignore[method-assign]
    memory = twin.memory.read(records, launch.size + 64)
    assert not any(memory[launch.size :]), "written beyond the maps"
    units, frame = launch.frame(memory[: launch.size])
    one = OneLaunch(
        "here", arch, ("code object", 1), kernel, made.reason, made.detail, probe, shape.grid, shape.block, 0,
        lanes=made.lanes, files=made.files, maps=maps, frame=frame, log_units=units,
    )  # fmt: skip
    (found,) = Trace(write_trace(folder, one)).kernels
    (only,) = found.launches()
    same = before == [twin.memory.read(at, size) for at, size in places]
    return Probed(only.maps, dict(enumerate(plan.at)), same, trace, ticks, arch)
