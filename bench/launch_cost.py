"""What the hook adds to a launch: nanoseconds and instructions, in front of a driver that does nothing.

    python -m bench.launch_cost [LIB ...]

LIB: folders that ``python -m neutrino.loader.build FOLDER`` wrote, such as another commit's and this one's; they take
turns. Without one: this tree's. Prints, for each, the median and the least of 15 batches for a kernel without a twin,
for one whose twin is not ready (--hot), for one of which no launch is chosen (--launches) and for one with a twin and
two maps; and, where valgrind is installed, instructions of a launch. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from neutrino.abi.reasons import Reason
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.tracing import Trace, find_traces
from tests.loader.conftest import IMAGE, RUN_KEY, entry_of, write_reasons
from tests.loader.null_driver import BUILT, build_driver, compile_c, hooked_environment

LAUNCHES, ROUNDS, BATCHES = 5_000, 5, 3
WAYS = ("unprobed", "not-ready", "not chosen", "probed")


class Bench:
    """The null driver, the program and cache entries, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Build the null driver and the program, and make a cache for each way of launching: with a twin (copy with
        probes), or a reason for none.
        """
        self._folder = folder
        self._driver = build_driver(folder)
        compile_c(Path(__file__).with_name("launch_cost.c"), folder / "launch_cost")
        (folder / "image").write_bytes(IMAGE)
        for way in WAYS:
            (folder / way).mkdir()
        write_reasons(folder / "unprobed", Reason.NUMERICS)
        for way in ("not chosen", "probed"):
            Cache(folder / way / "cache").write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))

    def _run(self, library: Path, way: str, launches: int, batches: int, *under: str) -> list[float]:
        """Run a program that launches kernels on a driver that does nothing; return the nanoseconds of a launch, for
        each batch.

        library: folder with the hook (Neutrino's library). way: one of WAYS. launches: of a batch. under: a command
        around it, such as valgrind. Raises SystemExit when other launches were probed than the way says.
        """
        traces = Path(tempfile.mkdtemp(dir=self._folder))
        environment = dict(hooked_environment(self._driver, library, self._folder / way / "cache", traces))
        if way == "not-ready":
            environment["NEUTRINO_HOT"] = "1000000000"
        if way == "not chosen":
            environment["NEUTRINO_LAUNCHES"] = "1000000000:"
        program, image = self._folder / "launch_cost", self._folder / "image"
        command = [str(program), str(image), "count_p2", str(launches), str(batches)]
        done = subprocess.run([*under, *command], env=environment, capture_output=True, text=True, check=True)
        (trace,) = find_traces(traces)
        probed = sum(kernel.counters.get(Reason.PROBED, 0) for kernel in Trace(trace).kernels)
        if probed != (launches * (batches + 1) if way == "probed" else 0):
            raise SystemExit(f"{library}: {probed} launches were probed: what was measured is not {way}")
        shutil.rmtree(traces)
        return [float(line) for line in done.stdout.split()]

    def times(self, library: Path, way: str) -> list[float]:
        """Nanoseconds that a launch takes, for each batch.

        library: folder with the hook (Neutrino's library in the program); way: one of WAYS.
        """
        return self._run(library, way, LAUNCHES, BATCHES)

    def instructions(self, library: Path, way: str) -> float:
        """Instructions that a launch executes in the program's thread, counted by callgrind in 2000 launches.

        Raises SystemExit when it counted none.
        """
        counts = []
        for launches in (1000, 2000):
            out = self._folder / "callgrind"
            tool = ("valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}")
            self._run(library, way, launches, 1, *tool)
            totals = re.search(r"^(?:totals|summary): (\d+)", Path(f"{out}-01").read_text(), re.MULTILINE)
            if totals is None:
                raise SystemExit("callgrind counted nothing")
            counts.append(int(totals[1]))
        return (counts[1] - counts[0]) / 2000


def main() -> None:
    """Measure what a launch costs with each hook (library) in each way of launching, in turns; print a line for each.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", metavar="LIB", nargs="*", type=Path, default=[BUILT])
    libraries = [library.resolve() for library in parser.parse_args().libraries]
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary))
        cases = [(library, way) for way in WAYS for library in libraries]
        times: dict[tuple[Path, str], list[float]] = {case: [] for case in cases}
        for _ in range(ROUNDS):
            for case in cases:
                times[case] += bench.times(*case)
        for case in cases:
            library, way = case
            line = f"{library}: {way}: median {statistics.median(times[case]):.0f} ns, least {min(times[case]):.0f} ns"
            if shutil.which("valgrind"):
                line += f", {bench.instructions(*case):.0f} instructions"
            print(line)


if __name__ == "__main__":
    main()
