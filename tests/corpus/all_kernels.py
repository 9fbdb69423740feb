"""Probe every kernel of the corpus and judge the result: ``python -m tests.corpus.all_kernels`` (``make corpus``).

For each image, device and shipped probe: does the printer give the text back, does every twin assemble where its
original does, are the counts of arithmetic those of the machine code that was shipped, and how fast are reading and
probing; and does the table of opcodes know every instruction. Writes ``build/corpus.json``, figures by source,
device and probe, and says how they differ from those that are recorded; ``verdicts`` judges them, here and in the
tests. ``--out bench/results/corpus.json`` records them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.numerics.proof import NumericsProof
from neutrino.errors import NeutrinoError
from neutrino.fatbin import ImageKind, read_container
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import compare, compare_kinds
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes
from tests.corpus.outputs import OUT_HELP, write
from tests.corpus.unknown_opcodes import count_images

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "corpus.json"
PROBES = ("block_sched", "gmem_bytes")
SOURCES = ("nvcc", "clang", "triton", "ctranslate2")
REQUIRED_ARCHITECTURES = frozenset({"sm_75", "sm_80", "sm_90a", "sm_100a"})
LEAST_KERNELS = 300
LEAST_OF_CTRANSLATE2 = 540
LEAST_INSTRUCTIONS = 400_000
LEAST_SPEED = 10e6
"""Bytes of PTX a second and core, for reading, probing and printing."""
LEAST_PROBED = 0.95
_REFUSED_ORIGINAL = "refuses the original"


def texts(image: bytes, name: str) -> Iterator[str]:
    """Yield the PTX texts in an image (a file's bytes): its PTX entries, and what line information left in its machine
    code."""
    for item in read_container(image, name).images:
        if item.kind is ImageKind.PTX:
            yield item.data.decode("latin-1")
        elif item.kind is ImageKind.CUBIN and (text := read_cubin(item.data, name).debug_ptx) is not None:
            yield text


def devices(image: bytes, name: str) -> list[str]:
    """The GPU architectures (``sm_90`` …) to probe an image for: those of its PTX, and later ones that could compile
    it.
    """
    chosen: set[str] = set()
    for text in texts(image, name):
        target = parse(text).target
        number, suffix = re.fullmatch(r"sm_(\d+)([af]?)", target).groups()  # type: ignore[union-attr]
        chosen.add(f"sm_{number}")
        if not suffix and name.endswith((".ptx", ".fatbin")):
            chosen.update(f"sm_{other}" for other in (90, 100) if other > int(number))
    return sorted(chosen, key=lambda device: int(device[3:]))


def examine(path: Path, source: str, only: int | None = None) -> dict[str, Any]:
    """Probe all kernels of one image and return raw figures: per text its digests and speed, per device and probe the
    outcomes.

    only: this many devices, the oldest first; None for all.
    """
    image = path.read_bytes()
    rows = []
    for probe in PROBES:
        probes = load_probes([probe])
        for device in devices(image, path.name)[:only]:
            entry = read_entry(
                patch_image(
                    image, probes, device, selection=Selection((), ()), assembler=find_assembler(), key=bytes(32)
                ),
                path.name,
            )
            manifests = [json.loads(kernel.files["manifest.json"]) for kernel in entry.kernels if kernel.files]
            changed = [
                [manifest["name"][-60:], *(manifest["numerics"][what] for what in ("original", "twin", "own", "proof"))]
                for manifest in manifests if manifest["numerics"]["original"] != manifest["numerics"]["twin"]
            ]  # fmt: skip
            rows.append({
                "device": device,
                "arch": sorted({manifest["arch"] for manifest in manifests}),
                "probe": probe,
                "kernels": len(entry.kernels),
                "reasons": dict(Counter(kernel.reason.word for kernel in entry.kernels)),
                "same_arithmetic": len(manifests) - len(changed),
                "changed_arithmetic": changed,
                "skipped": [
                    [kernel.name[-60:], kernel.reason.word, kernel.detail[:160]]
                    for kernel in entry.kernels if kernel.reason is not Reason.PROBED
                ],
            })  # fmt: skip
    return {
        "source": source,
        "file": path.name,
        "texts": [_text(text) for text in texts(image, path.name)],
        "rows": rows,
    }


def _text(text: str) -> dict[str, Any]:
    """Read, probe and print one PTX text; return its size, the processor seconds that took, digests, and how many
    kernels it has.

    The digests are of the text as read and as printed back.
    """
    probes = load_probes(PROBES)
    before = time.process_time()
    module = parse(text)
    twins = probe_module(module, probes)
    twins.render()
    seconds = time.process_time() - before
    return {
        "bytes": len(text),
        "seconds": round(seconds, 6),
        "entries": len(module.entries),
        "read": hashlib.sha256(text.encode("latin-1")).hexdigest()[:16],
        "printed": hashlib.sha256(module.print().encode("latin-1")).hexdigest()[:16],
    }


def summarize(images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return by source what the verdicts need of its images' figures.

    faults: what is wrong with single images. distinct: by probe, kernels that it was put into, each once for all
    devices. rows: by device and probe, kernels by what became of them, and of how many the assembler refuses the
    original.
    """
    found = []
    for source in dict.fromkeys(image["source"] for image in images):
        own = [image for image in images if image["source"] == source]
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for row in (row for image in own for row in image["rows"]):
            kept = rows.setdefault((row["device"], row["probe"]), {
                "device": row["device"], "probe": row["probe"], "arch": [], "kernels": 0, "refused": 0, "reasons": {},
            })  # fmt: skip
            kept["arch"] = sorted({*kept["arch"], *row["arch"]})
            kept["kernels"] += row["kernels"]
            kept["refused"] += sum(_REFUSED_ORIGINAL in detail for _, _, detail in row["skipped"])
            kept["reasons"] = dict(Counter(kept["reasons"]) + Counter(row["reasons"]))
        texts = [text for image in own for text in image["texts"]]
        found.append({
            "source": source,
            "images": len(own),
            "faults": [fault for image in own for fault in image_faults(image)],
            **{key: sum(text[key] for text in texts) for key in ("bytes", "seconds", "entries")},
            "distinct": {probe: sum(_most(image, probe) for image in own) for probe in PROBES},
            "rows": list(rows.values()),
        })  # fmt: skip
    return found


def verdicts(results: dict[str, Any]) -> list[str]:
    """Return the bounds that the recorded figures miss, a line each; empty when they meet every one."""
    sources = {row["source"]: row for row in results["sources"]}
    faults = [f"source {name}: no image" for name in SOURCES if not sources.get(name, {}).get("images")]
    reached = {arch for source in sources.values() for row in source["rows"] for arch in row["arch"]}
    faults += [f"{arch}: no kernel probed" for arch in sorted(REQUIRED_ARCHITECTURES - reached)]
    faults += [fault for source in sources.values() for fault in source["faults"]]
    entries = sources.get("ctranslate2", {}).get("entries", 0)
    if entries < LEAST_OF_CTRANSLATE2:
        faults.append(f"ctranslate2: {entries} entries, {LEAST_OF_CTRANSLATE2} wanted")
    for probe in PROBES:
        distinct = sum(source["distinct"][probe] for source in sources.values())
        if distinct < LEAST_KERNELS:
            faults.append(f"{probe}: {distinct} kernels probed, {LEAST_KERNELS} wanted")
        for name, source in sources.items():
            rows = [row for row in source["rows"] if row["probe"] == probe]
            kernels = sum(row["kernels"] - row["refused"] for row in rows)
            probed = sum(row["reasons"].get("probed", 0) for row in rows)
            if probed < LEAST_PROBED * kernels:
                faults.append(f"{name} {probe}: {probed} of {kernels} probed, {LEAST_PROBED:.0%} wanted")
    counted = results["opcodes"]
    faults += [
        f"{row['source']}: {count} instructions {opcode!r}, which the table of opcodes lacks"
        for row in counted for opcode, count in row["unknown"].items()
    ]  # fmt: skip
    instructions = sum(row["known"] for row in counted)
    if instructions < LEAST_INSTRUCTIONS:
        faults.append(f"opcodes: {instructions} instructions looked up, {LEAST_INSTRUCTIONS} wanted")
    speed = reading_speed(results["sources"])
    if speed < LEAST_SPEED:
        faults.append(f"read and probed at {speed / 1e6:.1f} MB/s, {LEAST_SPEED / 1e6:.0f} wanted")
    return faults


def image_faults(image: dict[str, Any]) -> list[str]:
    """Return what is wrong with the recorded figures of one image, a line each."""
    label = f"{image['source']}/{image['file']}"
    faults = [f"{label}: no row" for _ in range(not image["rows"])]
    faults += [f"{label}: printed text differs" for text in image["texts"] if text["read"] != text["printed"]]
    for row in image["rows"]:
        faults += [f"{label} {row['device']} {row['probe']}: {fault}" for fault in _row_faults(row)]
    return faults


def _row_faults(row: dict[str, Any]) -> Iterator[str]:
    """What one image's figures for one device and probe fall short in: kernels not accounted for, twins (copies with
    the probe) that do not assemble, or whose arithmetic differs.
    """
    if sum(row["reasons"].values()) != row["kernels"]:
        yield f"{row['kernels']} kernels, {sum(row['reasons'].values())} accounted for"
    skipped = Counter(reason for _, reason, _ in row["skipped"])
    if skipped != Counter({word: count for word, count in row["reasons"].items() if word != Reason.PROBED.word}):
        yield "skipped kernels are not all listed"
    for name, reason, detail in row["skipped"]:
        if reason == Reason.ASSEMBLER.word and _REFUSED_ORIGINAL not in detail:
            yield f"{name} assembles, its twin does not: {detail}"
        if reason not in (
            word.word for word in (Reason.NUMERICS, Reason.UNSUPPORTED, Reason.ASSEMBLER, Reason.NO_SITE)
        ):
            yield f"{name}: {reason}: {detail}"
    for name, original, twin, own, *proof in row["changed_arithmetic"]:
        # What is shown by other means than counts may be there more or less often.
        holds = compare if proof in ([], [NumericsProof.COUNTS.value]) else compare_kinds
        if (difference := holds(original, twin, own)) is not None:
            yield f"{name} is probed although its arithmetic is another: {difference}"
    if row["same_arithmetic"] + len(row["changed_arithmetic"]) != row["reasons"].get(Reason.PROBED.word, 0):
        yield "not every probed kernel's arithmetic was compared"


def _most(image: dict[str, Any], probe: str) -> int:
    """Return the most kernels of an image that a probe was put into, over its devices."""
    return max((row["reasons"].get("probed", 0) for row in image["rows"] if row["probe"] == probe), default=0)


def reading_speed(sources: Sequence[dict[str, Any]]) -> float:
    """Return the bytes of PTX of some sources that were read and probed per second; 0 without any."""
    seconds = sum(source["seconds"] for source in sources)
    return sum(source["bytes"] for source in sources) / seconds if seconds else 0.0


def table(results: dict[str, Any]) -> str:
    """Return the figures as a short table for people: a line for each source of images and probe."""
    head = ("source", "images", "PTX MB", "entries", "probe", "kernels", "probed", "numerics", "other", "MB/s")
    lines = ["{:12}{:>7}{:>8}{:>9}  {:12}{:>8}{:>8}{:>9}{:>7}{:>7}".format(*head)]
    for source in results["sources"]:
        for probe in PROBES:
            rows = [row for row in source["rows"] if row["probe"] == probe]
            reasons = sum((Counter(row["reasons"]) for row in rows), Counter())
            other = reasons.total() - reasons["probed"] - reasons["numerics"]
            lines.append(
                f"{source['source']:12}{source['images']:7}{source['bytes'] / 1e6:8.1f}{source['entries']:9}"
                f"  {probe:12}{sum(row['kernels'] for row in rows):8}{reasons['probed']:8}{reasons['numerics']:9}"
                f"{other:7}{reading_speed([source]) / 1e6:7.1f}"
            )
    known = sum(row["known"] for row in results["opcodes"])
    unknown = sum(sum(row["unknown"].values()) for row in results["opcodes"])
    lines.append(f"{known + unknown} instructions, {unknown} of them unknown to the table of opcodes")
    return "\n".join(lines)


def _job(job: tuple[Path, str]) -> dict[str, Any]:
    """Examine one image, in a process of the pool.

    job: its path and its source. Raises RuntimeError that names the image.
    """
    try:
        return examine(*job)
    except (NeutrinoError, OSError, ValueError, LookupError) as error:
        raise RuntimeError(f"{job[0]}: {error}") from error


def main() -> int:
    """Collect the corpus, probe its images, and print and write the figures. Returns 1 when a bound is missed."""
    from tests.corpus.collect import collect

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".corpus", help="where the corpus is, or is made")
    parser.add_argument("--source", action="append", choices=SOURCES, help="only these; nothing is written then")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    options = parser.parse_args()
    jobs = [(path, source) for source in options.source or SOURCES for path in collect(options.folder, source)]
    jobs.sort(key=lambda job: -job[0].stat().st_size)
    started = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        images = list(pool.map(_job, jobs))
    images.sort(key=lambda image: (SOURCES.index(image["source"]), image["file"]))
    sources = options.source or SOURCES
    opcodes = [count_images([path for path, of in jobs if of == source], source) for source in sources]
    results = {"assembler": find_assembler().name, "opcodes": opcodes, "sources": summarize(images)}
    print(table(results))
    faults = verdicts(results) if options.source is None else [
        fault for fault in verdicts(results) if not fault.startswith(("source ", "sm_", "opcodes: "))
    ]  # fmt: skip
    print(f"{time.monotonic() - started:.0f} s", *faults, sep="\n")
    if options.source is None:
        write(options.out, RESULTS, results)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
