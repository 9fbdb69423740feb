"""Reads the data of one kernel in a Neutrino trace; needs NumPy only, and lies in each trace directory.

python read.py                  what the trace beside this file holds
python read.py result/1.bin     one kernel's data
python read.py result/1.bin 17  those of launch 17

from read import parse
header, sections, records = parse("result/1.bin")
records["BlockSched"]["elapsed"]    # [block][warp][k]; by thread [block][warp][k][lane], by block [block][k]
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

# Layout: generated from neutrino/probing/layout.py by neutrino.probing.read_layout
FORMAT_VERSION = 3
RESULT_MAGIC = b"NTRESULT"
FRAME_MAGIC = b"NTFRAME\0"
LANES = 32
REGION_ALIGN = 128
SUM_COPIES_LEAST = 8
SUM_COPIES_MOST = 128
SUM_WARPS_PER_COPY = 32
SUM_ALIGN = 128
KINDS = ("array", "sum")
LEVELS = ("thread", "warp", "block")
RESULT_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("kernel", "<u4"),
        ("maps", "<u4"),
        ("map_size", "<u4"),
        ("reserved", "<u8"),
    ]
)
MAP_DESCRIPTOR = np.dtype(
    [
        ("name", "S64"),
        ("kind", "<u4"),
        ("level", "<u4"),
        ("record_size", "<u4"),
        ("cap", "<u4"),
    ]
)
FRAME = np.dtype(
    [
        ("magic", "S8"),
        ("launch", "<u8"),
        ("grid", "<u4", (3,)),
        ("block", "<u4", (3,)),
        ("size", "<u8"),
        ("dynamic_cap", "<u4"),
        ("reserved", "<u4", (3,)),
    ]
)
# End of the layout

TYPES = {"u": "<u", "s": "<i", "f": "<f"}
MOST_RECORD = 65536
MOST_THREADS = 65535


def parse(path, launch=None):
    """Read one launch of a kernel: (header, sections, records).

    path: a result/<kernel>.bin. launch: its number in launches.bin; None is the first one in the file.
    header: dict with kernel, name, launch, launches (the numbers in the file), grid, block.
    sections: for each map a dict with name, kind, level, record_size, cap (of this launch where it is dynamic),
    dynamic, fields, and counts (saves of each slot, None for cap 1). records: map name → structured array
    [block][warp][k], at thread level [block][warp][k][lane], at block level [block][k]; a sum map gives one record.
    Raises ValueError for a file that is damaged, LookupError for a launch that is not in it.
    """
    path = Path(path)
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    head, maps = _read_maps(path, data)
    frames = _frames(path, data, RESULT_HEADER.itemsize + maps.nbytes)
    if not frames or (launch is not None and launch not in frames):
        raise LookupError(f"{path}: launch {launch} is not in the file")
    number = next(iter(frames)) if launch is None else launch
    frame = np.frombuffer(data, FRAME, 1, frames[number])[0]
    manifest = _manifest(path)
    header = {
        "kernel": int(head["kernel"]),
        "name": manifest.get("demangled", ""),
        "launch": number,
        "launches": list(frames),
        "grid": tuple(int(size) for size in frame["grid"]),
        "block": tuple(int(size) for size in frame["block"]),
    }
    blocks, threads = math.prod(header["grid"]), math.prod(header["block"])
    if not blocks or not 0 < threads <= MOST_THREADS:
        raise ValueError(f"{path}: launch {number} has {blocks} blocks of {threads} threads")
    warps = -(-threads // LANES)
    offset = frames[number] + FRAME.itemsize
    start = offset
    end = start + int(frame["size"])
    sections, records = [], {}
    for row, (fields, dtype) in zip(maps, _fields(path, maps, manifest), strict=True):
        name, size, cap = row["name"].decode(), int(row["record_size"]), int(row["cap"])
        level, dynamic = LEVELS[row["level"]], cap == 0
        cap = int(frame["dynamic_cap"]) if dynamic else cap
        slots = (blocks,) if level == "block" else (blocks, warps)
        lanes = (LANES,) if level == "thread" else ()
        counts = None
        if KINDS[row["kind"]] == "sum":
            stride, number = _align(size, SUM_ALIGN), SUM_COPIES_LEAST
            while number < SUM_COPIES_MOST and number * SUM_WARPS_PER_COPY < blocks * warps:
                number *= 2
            _check_room(path, offset + number * stride, end)
            copies = np.ndarray((number,), dtype, data, offset, (stride,))
            records[name] = np.zeros((), dtype)
            for field in dtype.names:
                records[name][field] = np.add.reduce(copies[field], dtype=copies[field].dtype)
            offset += number * stride
        else:
            shape = (*slots, cap, *lanes)
            _check_room(path, offset + math.prod(shape) * size, end)
            records[name] = np.ndarray(shape, dtype, data, offset)
            offset = _align(offset - start + records[name].nbytes, REGION_ALIGN) + start
            if dynamic or cap > 1:
                _check_room(path, offset + math.prod((*slots, *lanes)) * 4, end)
                counts = np.ndarray((*slots, *lanes), "<u4", data, offset)
                offset += counts.nbytes
        offset = _align(offset - start, REGION_ALIGN) + start
        sections.append(
            {
                "name": name,
                "kind": KINDS[row["kind"]],
                "level": level,
                "record_size": size,
                "cap": cap,
                "dynamic": dynamic,
                "fields": fields,
                "counts": counts,
            }
        )
    return header, sections, records


def valid(header, section, records):
    """The records of one map that were saved, 1-D: no lanes that do not exist, no unused slots."""
    if section["kind"] == "sum":
        return records.reshape(1)
    by_thread = section["level"] == "thread"
    saved = np.ones(records.shape, bool)
    if by_thread:
        warps, threads = records.shape[1], math.prod(header["block"])
        saved &= (np.arange(warps * LANES) < threads).reshape(warps, 1, LANES)
    if section["counts"] is not None:
        # The axis of records within a slot: the last one, or the one before the lanes.
        axis = -2 if by_thread else -1
        k = np.arange(section["cap"]).reshape((-1, 1) if by_thread else (-1,))
        saved &= k < np.expand_dims(section["counts"], axis)
    return records[saved]


def _align(value, alignment):
    return -(-value // alignment) * alignment


def _check_room(path, needed, end):
    if needed > end:
        raise ValueError(f"{path}: at {end:#x}: the frame is too small for its grid, block and maps")


def _read_maps(path, data):
    if data.size < RESULT_HEADER.itemsize:
        raise ValueError(f"{path}: has {data.size} bytes: it is cut off")
    head = np.frombuffer(data, RESULT_HEADER, 1)[0]
    if head["magic"] != RESULT_MAGIC.rstrip(b"\0") or head["version"] != FORMAT_VERSION:
        raise ValueError(f"{path}: not a result file of format version {FORMAT_VERSION}")
    if data.size < RESULT_HEADER.itemsize + int(head["maps"]) * MAP_DESCRIPTOR.itemsize:
        raise ValueError(f"{path}: has {data.size} bytes: it is cut off")
    maps = np.frombuffer(data, MAP_DESCRIPTOR, int(head["maps"]), RESULT_HEADER.itemsize)
    if len(maps) and (maps["kind"].max() >= len(KINDS) or maps["level"].max() >= len(LEVELS)):
        raise ValueError(f"{path}: a map's kind or level is not known")
    return head, maps


def _frames(path, data, offset):
    """Launch number → offset of its frame. A last frame that was cut off is left out."""
    frames = {}
    offset = _align(offset, 64)
    while offset + FRAME.itemsize <= data.size:
        frame = np.frombuffer(data, FRAME, 1, offset)[0]
        if frame["magic"] != FRAME_MAGIC.rstrip(b"\0"):
            raise ValueError(f"{path}: at {offset:#x}: no frame")
        end = offset + FRAME.itemsize + int(frame["size"])
        if end > data.size:
            break
        frames[int(frame["launch"])] = offset
        offset = _align(end, 64)
    return frames


def _manifest(path):
    manifest = path.resolve().parent.parent / "kernel" / path.stem / "manifest.json"
    document = json.loads(manifest.read_text()) if manifest.is_file() else {}
    if not isinstance(document, dict):
        raise ValueError(f"{manifest}: not a manifest")  # noqa: TRY004
    return document


def _fields(path, maps, manifest):
    """Of each map its fields, name → type, and the type of its records; without a manifest one field of bytes each."""
    if len(maps) and not 0 < maps["record_size"].min() <= maps["record_size"].max() <= MOST_RECORD:
        raise ValueError(f"{path}: a map's record size is none")
    try:
        known = {entry["name"]: entry["fields"] for entry in manifest.get("maps", [])}
        return [_record(known.get(row["name"].decode()), int(row["record_size"])) for row in maps]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: the kernel's manifest.json is damaged: {error!r}") from None


def _record(fields, size):
    if fields is None:
        fields = [{"name": f"byte{at}", "type": "u8", "offset": at} for at in range(size)]
    dtype = np.dtype(
        {
            "names": [field["name"] for field in fields],
            "formats": [TYPES[field["type"][0]] + str(int(field["type"][1:]) // 8) for field in fields],
            "offsets": [field["offset"] for field in fields],
            "itemsize": size,
        }
    )
    return {field["name"]: field["type"] for field in fields}, dtype


def _embedded(path):
    """Whether the trace around a result file was made on the embedded device."""
    events = path.resolve().parent.parent / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True) if events.is_file() else []
    # A last line without its end is one that is being written, or was cut off.
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    devices = [row.get("name") for row in rows if isinstance(row, dict) and row.get("event") == "device"]
    return any(str(name).startswith("Neutrino embedded device") for name in devices)


def _summary(path, launch):
    header, sections, records = parse(path, launch)
    count = len(header["launches"])
    print(f"{path}: {header['name'] or 'kernel ' + str(header['kernel'])}, {count} launches with data")
    if _embedded(path):
        print("  embedded device: times are steps of the interpreter, not cycles")
    print(f"  launch {header['launch']}: grid {header['grid']}, block {header['block']}")
    for section in sections:
        rows = valid(header, section, records[section["name"]])
        print(f"  {section['name']} ({section['kind']}, {section['level']}): {len(rows)} records")
        for field in section["fields"] if len(rows) else ():
            column = np.sort(rows[field])
            low, middle, high = column[0], column[(len(column) - 1) // 2], column[-1]
            print(f"    {field}: min {low}, median {middle}, max {high}")


def main(arguments):
    """Print a short summary of one file, or of all result files beside this script."""
    launch = int(arguments[1]) if len(arguments) > 1 else None
    files = [Path(arguments[0])] if arguments else sorted((Path(__file__).parent / "result").glob("*.bin"))
    if not files:
        print("no data: no launch was probed")
    for path in files:
        try:
            _summary(path, launch)
        except (OSError, ValueError, LookupError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
