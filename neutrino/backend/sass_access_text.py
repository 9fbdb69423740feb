"""Text of PTX code of probes at accesses, line by line: what it writes, and how it becomes one for all sites."""

from __future__ import annotations

import re
from collections.abc import Mapping

from neutrino.errors import MachineCodeError

_NAME = "probe_code"
"""What errors name: no kernel of the program."""
_ANY_VOTE = re.compile(r"^\s*vote\.sync\.any\.pred (%\w+),", re.MULTILINE)
_CHOSEN = re.compile(r"^\s*selp\.b32 (%\w+), 1, 0, (%\w+);", re.MULTILINE)
_IF_CHOSEN = re.compile(r"^\s*setp\.ne\.u32 (%\w+), (%\w+), 0;", re.MULTILINE)
_BOTH = re.compile(r"^\s*and\.pred (%\w+), (%\w+), (%\w+);", re.MULTILINE)
_EFFECT = re.compile(r"^\s*(?:@(!?%\w+)\s+)?(?:red|atom|st|vote|shfl|match|bar|pmevent|bra)\b")
WRITTEN = re.compile(r"\s*(?:@\S+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)\s*[,;|]")
"""The destination of an instruction, or its first operand."""


def written_in(code: str) -> set[str]:
    """The registers that code writes."""
    return {one for line in code.splitlines() if (found := WRITTEN.match(line)) is not None
            for one in re.findall(r"%\w+", found[1])}  # fmt: skip


def stored_early(code: str, stores: Mapping[str, str]) -> str:
    """Return code with each store of a register right after the last line that writes it: what is not the clock's is
    stored before that is read."""
    lines = code.rstrip().splitlines()
    left = dict(stores)
    out: list[str] = []
    for line in reversed(lines):
        for one in [one for one in left if one in written_in(line)]:
            out.append(left.pop(one))
        out.append(line)
    return "\n".join(reversed(out)) + "\n"


def register_of_leap(before: str, after: str, kept: frozenset[str]) -> str:
    """Return the register without which code after an access does nothing, if all lanes that are together have the same
    there: what a vote before the access said; "" if there is none.

    kept: the registers that outlive the code.
    """
    votes = {one[1] for one in _ANY_VOTE.finditer(before)}
    chosen = [one for one in _CHOSEN.finditer(before) if one[1] in kept and one[2] in votes]
    asked = _IF_CHOSEN.search(after)
    if not chosen or asked is None or asked[2] != chosen[-1][1] or asked[2] in written_in(after):
        return ""
    if asked[2] in written_in(before[chosen[-1].end() :]):
        return ""
    implied = {asked[1]}
    for both in _BOTH.finditer(after):
        if implied & {both[2], both[3]}:
            implied.add(both[1])
    for line in after.splitlines():
        effect, written = _EFFECT.match(line), WRITTEN.match(line)
        guard = re.match(r"\s*@(!?%\w+)\s", line)
        outlives = written is not None and set(re.findall(r"%\w+", written[1])) & kept
        if (effect is not None or outlives) and (guard is None or guard[1] not in implied):
            return ""
    return asked[2]


_ARRIVES = re.compile(r"^\s*or\.b32 (%\w+), \1, (%\w+);")


def without_arrival(code: str) -> str:
    """Return code after a load without what makes its result ready to be waited for, which is all that an ``or`` with
    what is never 0 asks of it."""
    out: list[str] = []
    made = {f"%out_{bits}_0" for bits in (16, 32, 64)}
    for line in code.splitlines():
        written, arrives = WRITTEN.match(line), _ARRIVES.match(line)
        if arrives is not None and arrives[2] in made:
            out.append(line.replace(arrives[2], "%result"))
            continue
        rest = line[: written.start(1)] + line[written.end(1) :] if written is not None else line
        is_made = bool(set(re.findall(r"%\w+", rest)) & made)
        if is_made and written is not None and re.match(r"\s*(?:mov|cvt)\b", line):
            made.add(written[1])
            continue
        out.append(line)
    return "\n".join(out)


def numbered(code: str) -> str:
    """Return code with its temporary registers numbered in their order."""
    numbers: dict[str, str] = {}
    return re.sub(
        r"%neutrino_t([a-z])\d+", lambda found: numbers.setdefault(found[0], f"%{found[1]}_{len(numbers)}"), code
    )


_PLACE = re.compile(r"\[(%\w+)(?:\+(\d+))?\]")
_TOKEN = re.compile(r"[%\w.$]+|\s+|[^%\w.$\s]")


def with_site(first: str, second: str) -> str:
    """Return the code at an access with a register for the number of its site. first, second: the code of the sites 0
    and 1, which is else the same. Raises MachineCodeError if it is not."""
    lines = first.strip().splitlines(), second.strip().splitlines()
    if len(lines[0]) != len(lines[1]):
        raise MachineCodeError(_NAME, "the probes' code is not the same at each access")
    return "\n\t" + "\n".join(_line_with_site(*pair) for pair in zip(*lines, strict=True)) + "\n"


def _line_with_site(first: str, second: str) -> str:
    """Return a line of the code at an access: ``with_site``."""
    places = _PLACE.search(first), _PLACE.search(second)
    if first != second and places[0] is not None and places[1] is not None:
        begin, end = (int(place[2] or 0) for place in places if place is not None)
        alike = _PLACE.sub("", first) == _PLACE.sub("", second) and places[0][1] == places[1][1]
        if alike and end > begin:
            # The cells of sites are one after the other.
            place = f"[%site_place+{begin}]" if begin else "[%site_place]"
            return (
                f"\tmad.wide.u32 %site_place, %site_number, {end - begin}, {places[0][1]};\n"
                f"{_PLACE.sub(place, first)}"
            )
    tokens = _TOKEN.findall(first), _TOKEN.findall(second)
    out = []
    if len(tokens[0]) != len(tokens[1]):
        raise MachineCodeError(_NAME, "the probes' code is not the same at each access")
    for one, other in zip(*tokens, strict=True):
        if one != other and (one, other) != ("0", "1"):
            raise MachineCodeError(_NAME, f"the probes' code is not the same at each access, {one} and {other}")
        out.append(one if one == other else "%site_number")
    return "".join(out)


def check_temporaries(code: str, where: str) -> None:
    """Raise MachineCodeError for code that reads what was left on the other side of an access."""
    known: set[str] = set()
    for line in code.splitlines():
        found = WRITTEN.match(line)
        written = set(re.findall(r"%\w+", found[1])) if found is not None else set()
        if found is not None:
            line = line[: found.start(1)] + line[found.end(1) :]
        unknown = set(re.findall(r"%neutrino_t\w+", line)) - known
        if unknown:
            raise MachineCodeError(_NAME, f"the probes' code {where} reads {min(unknown)} of elsewhere")
        known |= written
