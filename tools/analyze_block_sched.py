"""How evenly the warps of each launch were spread over the multiprocessors; for traces of the probe block_sched.

python analyze_block_sched.py TRACE

An example of an analyze hook. It needs NumPy and the read.py in the trace. If a probe file has
analyze_hook = "analyze_block_sched.py", neutrino runs it when the program has ended; the trace's analyze.log has what
it prints.
"""

import sys
from pathlib import Path

import numpy as np

FIELDS = {"start", "elapsed", "cuid"}


def spread(rows):
    """Return for each multiprocessor (id, warps, cycles from its first warp's start to its last one's end), by id.

    rows: a record for each warp, with its start and elapsed time in cycles, and its multiprocessor, cuid. The clocks of
    two multiprocessors are not synchronised: durations can be compared, points in time cannot.
    """
    ends = rows["start"] + rows["elapsed"]
    multiprocessors = []
    for number in np.unique(rows["cuid"]):
        is_here = rows["cuid"] == number
        span = int(ends[is_here].max() - rows["start"][is_here].min())
        multiprocessors.append((int(number), int(is_here.sum()), span))
    return multiprocessors


def describe(rows):
    """Yield the lines about one launch. rows: a record for each of its warps, as for ``spread``."""
    multiprocessors = spread(rows)
    span_by_number = {number: span for number, _, span in multiprocessors}
    longest = max(span_by_number, key=span_by_number.get)
    spans = sorted(span_by_number.values())
    counts = [warps for _, warps, _ in multiprocessors]
    times = np.sort(rows["elapsed"])
    yield f"{len(rows)} warps on {len(multiprocessors)} multiprocessors, {min(counts)} to {max(counts)} each"
    yield f"a warp ran {times[0]} to {times[-1]} cycles, median {median(times)}"
    busy = f"{spans[0]} to {spans[-1]} cycles, median {median(spans)}"
    yield f"a multiprocessor was busy for {busy}; the longest: {longest}"


def median(values):
    """Return the middle one of sorted values; of an even number the lower of the two middle ones."""
    return values[(len(values) - 1) // 2]


def main(trace):
    """Print a summary of each launch of each kernel in a trace directory.

    Returns the exit status: 3 if no map has the fields of block_sched, else 0.
    """
    # The trace has its own read.py, which knows its format.
    sys.path.insert(0, str(trace))
    from read import parse, valid

    found = False
    for path in sorted(Path(trace).glob("result/*.bin"), key=lambda path: int(path.stem)):
        try:
            header, sections, _ = parse(path)
        except LookupError:
            # No launch of this kernel was recorded.
            continue
        names = [section["name"] for section in sections if set(section["fields"]) >= FIELDS]
        for name in names:
            found = True
            print(f"{header['name'] or 'kernel ' + path.stem}: {name}")
            for launch in header["launches"]:
                # Sections are per launch too, as they have the counts of its slots.
                header, sections, records = parse(path, launch)
                section = next(section for section in sections if section["name"] == name)
                rows = valid(header, section, records[name])
                # A warp that did not reach the kernel's end has a record of zeros.
                rows = rows[rows["elapsed"] > 0]
                print(f"  launch {launch}: " + "\n    ".join(describe(rows) if len(rows) else ["no warp has ended"]))
    if not found:
        print("no map with start, elapsed and cuid: this is not a trace of block_sched")
    return 0 if found else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
