"""Several probes in one twin: each must record what it records alone, to the last clock.

Both twins run on the embedded device, with a clock of their own in place of the device's: a register that each
instruction of the original moves on by an amount of its text. So a clock says after which instructions of its thread it
was read, and is the same however much other probes insert. Of records the order among threads is left out, as it is
nobody's; all else, their owners included, must be equal. What a probe records alone, the other tests here verify.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.tracing.views import MapView
from tests.oracle.bench import Bench, Kernel, make_twins
from tests.oracle.twin_launch import LoadedTwin

Row = tuple[Any, ...]
Recorded = Mapping[str, Counter[Row]]
"""Map → how often each record, or row of the result, is there; ``""`` has what was dropped of each map."""
_LATER = {("FirstNaN", "min")}
"""Fields with the time at which code runs that may wait for later sites, as far as those of the same probe reach."""
_START = 1 << 21
_NEXT = re.compile(r";[ \t]+(?=[\w@%.$])")
_CLOCKS = {"%clock64": "%turn64", "%globaltimer": "%turn64", "%clock": "%turn32", "%globaltimer_lo": "%turn32"}
_CLOCK = re.compile(r"%clock64|%globaltimer\b|%globaltimer_lo|%clock\b")
_PLAIN = re.compile(r"(?:@!?%?\w+\s+)?(?!ret\b|exit\b|bra\b|brx\b|call\b|trap\b|pmevent\b)[a-z][^\n]*;$")


class RefusedError(Exception):
    """A kernel gets no twin. The text says why."""


@dataclass(frozen=True)
class Ran:
    """A twin that ran. recorded: by its maps. results: arrays and variables of the program."""

    recorded: Recorded
    results: tuple[bytes, ...]


class Place:
    """A kernel, its original's results, and what probes have recorded of it alone."""

    def __init__(self, kernel: Kernel) -> None:
        # One statement a line.
        lines = (line if "//" in line or "/*" in line else _NEXT.sub(";\n", line) for line in kernel.text.split("\n"))
        self.kernel = replace(kernel, text="\n".join(lines))
        self._bench = Bench(self.kernel, (), (None,))

    @property
    def results(self) -> tuple[bytes, ...]:
        return self._bench.results(None)

    def run(self, probes: ProbeSet, twins: TwinModule | None = None) -> Ran | None:
        """Run the twin with these probes; None where none has a site. Raises RefusedError where the kernel gets
        no twin, DeviceFaultError and PtxRefusedError where the device cannot run it."""
        made = make_twins(self.kernel, probes) if twins is None else twins
        if not made.kernels:
            (skipped,) = made.skipped
            if skipped.reason.word == "no-site":
                return None
            raise RefusedError(f"{skipped.reason.word}: {skipped.detail}")
        (twin,) = made.kernels
        place = self._bench.place(None)
        module = place.device.load(with_turns(made.render(), self.kernel.text))
        views = LoadedTwin(twin, module, place.module.variables).launch(place.device, place.launch())
        place.device.unload(module)
        sites = {one.number: (one.line, one.instruction) for one in twin.sites if one.number is not None}
        return Ran(recorded(views, sites), place.results())


def recorded(views: Mapping[str, MapView], sites: Mapping[int, Any]) -> Recorded:
    """What maps hold, with the places of SITE for its numbers."""
    dropped = Counter({(name,): view.dropped for name, view in views.items() if view.dropped})
    found: dict[str, Counter[Row]] = {"": dropped}
    for name, view in views.items():
        rows = view.valid().reshape(-1)
        names = rows.dtype.names or ()
        columns = []
        for field in names:
            if (name, field) in _LATER:
                continue
            values = rows[field].tolist()
            is_site = field == "site" or (field == "key" and view.map.fields[0].name == "site")
            # As texts, by which a NaN is one.
            columns.append([sites.get(value, value) if is_site else str(value) for value in values])
        try:
            places = view.places()
        except ValueError:
            places = {}
        columns += [values.tolist() for axis, values in places.items()]
        found[name] = Counter(zip(*columns, strict=True))
    return found


def with_turns(text: str, original: str) -> str:
    """A twin's text with the clock of this module."""
    lines: list[str] = []
    own = {code for line in original.split("\n") if _PLAIN.match(code := line.partition("//")[0].strip())}
    depth = 0
    for line in text.split("\n"):
        code = line.partition("//")[0].strip()
        if depth and code in own:
            amount = crc32(code.encode()) % 997 + 3
            lines.append(f"add.u64 %turn64, %turn64, {amount}; cvt.u32.u64 %turn32, %turn64;")
        lines.append(_CLOCK.sub(lambda found: _CLOCKS[found[0]], line) if depth else line)
        opened, closed = code.count("{"), code.count("}")
        if not depth and opened > closed:
            lines.append(f".reg .b64 %turn64; .reg .b32 %turn32; mov.u64 %turn64, {_START}; mov.u32 %turn32, {_START};")
        depth += opened - closed
    return "\n".join(lines)


def differences(together: Ran, alone: Sequence[Ran], results: tuple[bytes, ...]) -> list[str]:
    """What probes in one twin have recorded or changed that they do not alone, by map."""
    found = ["the program's results differ"] * (together.results != results)
    expected: dict[str, Counter[Row]] = {"": Counter()}
    for one in alone:
        expected[""] += one.recorded[""]
        expected |= {name: rows for name, rows in one.recorded.items() if name}
    for name in sorted(expected.keys() | together.recorded.keys()):
        mine, theirs = together.recorded.get(name, Counter()), expected.get(name, Counter())
        if name not in expected and not any(value.strip("0") for row in mine for value in row[:1]):
            continue
        if mine != theirs:
            added, missed = mine - theirs, theirs - mine
            found.append(
                f"{name or 'dropped'}: {added.total()} of {mine.total()} are others, as {next(iter(added), '')}; "
                f"{missed.total()} of {theirs.total()} lack, as {next(iter(missed), '')}"
            )
    return found
