"""How evenly the warps of each launch were spread over the multiprocessors; for traces of the probe block_sched.

python analyze_block_sched.py TRACE

An example of an analyze hook. It needs NumPy and the read.py in the trace. If a probe file has
analyze_hook = "analyze_block_sched.py", neutrino runs it when the program has ended; the trace's analyze.log has what
it prints.
"""

import json
import sys
from pathlib import Path

import numpy as np

FIELDS = {"start", "elapsed", "cuid"}


def spread(rows):
    """Return for each multiprocessor (id, warps, time from its first warp's start to its last one's end), by id.

    rows: a record for each warp, with its start and elapsed time, and its multiprocessor, cuid. Times are in cycles; on
    the embedded device in steps of its interpreter, which are an order of events and no duration. The clocks of two
    multiprocessors are not synchronised: durations can be compared, points in time cannot.
    """
    ends = rows["start"] + rows["elapsed"]
    multiprocessors = []
    for number in np.unique(rows["cuid"]):
        is_here = rows["cuid"] == number
        span = int(ends[is_here].max() - rows["start"][is_here].min())
        multiprocessors.append((int(number), int(is_here.sum()), span))
    return multiprocessors


def unit_of(trace):
    """Return what times of a trace are in: cycles, or steps on the embedded device."""
    with (Path(trace) / "events.jsonl").open() as lines:
        # A process that was killed may have left a line without its end.
        events = [json.loads(line) for line in lines if line.endswith("\n")]
    names = [str(event.get("name")) for event in events if event.get("event") == "device"]
    return "steps" if any(name.startswith("Neutrino embedded device") for name in names) else "cycles"


def describe(rows, unit):
    """Yield the lines about one launch. rows: a record for each of its warps, as for ``spread``. unit: of times."""
    multiprocessors = spread(rows)
    span_by_number = {number: span for number, _, span in multiprocessors}
    longest = max(span_by_number, key=span_by_number.get)
    spans = sorted(span_by_number.values())
    counts = [warps for _, warps, _ in multiprocessors]
    times = np.sort(rows["elapsed"])
    yield f"{len(rows)} warps on {len(multiprocessors)} multiprocessors, {min(counts)} to {max(counts)} each"
    yield f"a warp ran {times[0]} to {times[-1]} {unit}, median {median(times)}"
    busy = f"{spans[0]} to {spans[-1]} {unit}, median {median(spans)}"
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

    unit = unit_of(trace)
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
                lines = describe(rows, unit) if len(rows) else ["no warp has ended"]
                print(f"  launch {launch}: " + "\n    ".join(lines))
    if not found:
        print("no map with start, elapsed and cuid: this is not a trace of block_sched")
    return 0 if found else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
