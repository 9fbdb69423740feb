"""Code of probes at accesses of memory for kernels that are machine code, where it is more than sums of constants.

Each kind of access (a load of four bytes, say) has a kernel of PTX that does nothing but that access. Its twin has the
probes' code, which is cut out at barriers and becomes a kernel of its own, with placeholders for the access
(``neutrino/sass/twin/placeholders.py``); so do the code for the entry and that for the end. Where probes are after
loads, the code before a load and that after it become a kernel each. The twins are for an
architecture whose code goes straight on, as code in trampolines has to. Probes at kernels' entries and ends alone have
such code, too, where that for the architecture itself would branch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from neutrino.backend.sass_access_sums import reads_lane_number
from neutrino.backend.sass_access_text import (
    WRITTEN,
    check_temporaries,
    numbered,
    register_of_leap,
    stored_early,
    with_site,
    without_arrival,
    written_in,
)
from neutrino.errors import MachineCodeError
from neutrino.maps.declaration import Map
from neutrino.maps.keyed import Keyed
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.model import Pattern, Subject
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.snippets.lowering import lower
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import Code
from neutrino.sass.encoding import not_displaced
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED
from neutrino.sass.twin.access_code import Parts, lift_parts
from neutrino.sass.twin.access_twin import Kind
from neutrino.sass.twin.placeholders import ADDRESS, DISTANCE, EXECUTES, FIRST_OFFSET, KEPT, RESULT, SITE
from neutrino.sass.twin.probe_code import EXIT_ENDS, Shape
from neutrino.sass.twin.trampolines import ARCHITECTURES, instruction_words
from neutrino.toolchain.ptxas import Assembler

_Opcode = tuple[str, ...]
_FIRST_ARCHITECTURE = 90
_LOWERED_FOR = "sm_70"
"""Whose lanes exchange values only by instructions that each of them executes."""
_NAME = "probe_code"
_VALUES = {1: "b8 %narrow", 2: "b16 %narrow", 4: "b32 %word", 8: "b64 %first", 16: "v2.b64 {%first, %second}"}
_ORDINARY: Mapping[str, _Opcode] = {
    "LDG": ("ld", "global"), "STG": ("st", "global"), "LDGSTS": ("cp", "async", "ca", "shared", "global"),
    "ATOMG": ("atom", "global"), "REDG": ("red", "global"),
}  # fmt: skip
"""First part of the name of an access that may have code → the instruction of PTX whose probes are there."""
_ALIKE: Mapping[str, tuple[_Opcode, ...]] = {
    "LDGSTS": (("cp", "async", "cg", "shared", "global"),), "ATOMG": (("red", "global"),),
    "REDG": (("atom", "global"),),
}  # fmt: skip
"""Others that it may be made of, and in its code nothing says of which: the same probes have to be at them."""
_SAME: Mapping[str, tuple[_Opcode, ...]] = {"LDG": (("ldu", "global"),)}
"""Others that are the same instruction in machine code: the ordinary one's probes are at them, too."""
_MATRICES: Mapping[str, _Opcode] = {"LDG": ("wmma", "load", "global"), "STG": ("wmma", "store", "global")}
"""Those of matrices that a whole warp has: each lane's part becomes accesses. Only code that reads the number of its
lane in the warp can be of them."""
_OTHERS: Mapping[str, tuple[_Opcode, ...]] = {
    "LD": (("ld", "generic"), ("ldu", "generic"), ("wmma", "load", "generic")),
    "ST": (("st", "generic"), ("wmma", "store", "generic")),
    "ATOM": (("atom", "generic"), ("red", "generic")),
    "RED": (("atom", "global"), ("red", "global"), ("atom", "generic"), ("red", "generic")),
    **dict.fromkeys(("UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"), (("cp",),)),
    **dict.fromkeys(("LDGMC", "REDGMC", "ATOMGMC", "STGMC"), (("multimem",),)),
    **dict.fromkeys(("TEX", "TLD", "TLD4", "TXD", "TMML"), (("tex",), ("tld4",))),
    **dict.fromkeys(("SULD", "SUST", "SUATOM", "SURED"), (("suld",), ("sust",), ("sured",))),
    **dict.fromkeys(("ATOMS", "REDAS"), (("atom", "shared"), ("red", "shared"))),
}  # fmt: skip
"""Accesses that have no code yet → what they are made of: PTX has several instructions for them, or their addresses are
of several memories, or of another. Of one word, all opcodes that begin with it."""
_NOT_BULK = frozenset({"ca", "cg"})
"""Of ``cp.async``: copies by lanes, which LDGSTS are."""
_OF_LANES = frozenset({"ld", "ldu", "st", "atom", "red", "wmma"})
"""PTX's instructions of which machine code tells no type, so that a pattern may have only a space as well."""
_SPACES = frozenset({"global", "generic"})
_OF_ANY_SPACE = frozenset({"atom", "red"})
"""Those of which a pattern may have no space: their other spaces are refused in kernels that have them."""
_OF_COPIES = frozenset({"cp", "multimem", "tensormap", "tex", "tld4", "suld", "sust", "sured"})
_ENTRY, _EXIT = "entry", "exit"
SITES = 256
"""How many accesses a kernel may have with code that saves under their numbers."""
_BEGIN, _NEXT = 13, 14
"""Barriers of a kernel with an access: before the first and the second one; the third has ``EXIT_ENDS``."""
_KERNEL = """.version 8.0
.target {target}
.address_size 64
.visible .entry {name}(.param .align 8 .b8 parameters[{size}])
{{
    .reg .b64 %site_address, %site_place, %first, %second;
    .reg .b32 %site_executed, %site_number, %word;
    .reg .b16 %narrow;
    .reg .pred %site_executes;
    bar.sync {begin};
{accesses}
    bar.sync {end};
    ret;
}}
"""
_HERE = """
    .reg .b32 %lanes_below, %together;
    .reg .pred %here;
    mov.u32 %lanes_below, %lanemask_lt;
    setp.ne.u32 %here, %lanes_below, 0xffffffff;
"""
"""A predicate that is true in every lane, which the assembler does not know; and an address that differs by lane."""
_CLOCK = re.compile(r"mov\.u64 (%\w+), %clock64;")
_CLOCK_ALWAYS = re.compile(r"(?<=\t)mov\.u64 (%\w+), %clock64;")
"""Under a predicate it is one of the lanes' already, which may be made of what has to be there before."""
_END = "the_end"
_RESULTS: Mapping[int, tuple[str, ...]] = {
    **dict.fromkeys((1, 2), ("%word", "cvt.u16.u32 %narrow, %word;")), 4: ("%word",),
    **dict.fromkeys((8, 16), ("%first",)),
}  # fmt: skip
"""Bytes of a load → the register that its result is in, and what puts it into the one that the probes' code reads."""
_ACTIVE = re.compile(r"activemask\.b32 (%\w+);")
_TOGETHER = re.compile(r"\b((?:vote|shfl|match)\.[^\n;]*), %\w+;")
_UNIFORM = re.compile(
    r"^(\t)(mov\.(?=u32)|ld\.param\.)([bu])(\d+) (%\w+), (%(?:n?ctaid|ntid|smid)\S*|\[__neutrino_block\S*\]);",
    re.MULTILINE,
)
_ACTIVE_UNDER = re.compile(r"@(!?%\w+) activemask\.b32 (%\w+);")
_ASKED_UNDER = re.compile(
    r"@(!?%\w+) (vote\.sync\.ballot\.b32|match\.any\.sync\.b(?:32|64)) (%\w+), (!?%\w+), (%\w+);"
)
"""What lanes under a predicate are asked, of the lanes in a mask, which are these."""
_ASKED = (
    r"\2 %together, \4, 0xffffffff;\n\tand.b32 %together, %together, \5;\n\t@\1 mov.b32 \3, %together;"
)
_INTO_TEMPORARY = re.compile(r"@!?%\w+ (mov\.b32 %neutrino_t\w+, %together;)")
"""What other lanes have in a register that is written at each access they do not use."""
"""The same asked of all lanes: else ``ptxas`` has the others branch, and the lanes wait for each other."""
_PARTED = re.compile(r"^\s*@\S+ (?:vote|shfl|match|activemask|elect|redux|bar|bra)\b", re.MULTILINE)
_TO_ADDRESS = re.compile(r"\b(?:red|atom|st)\.(?!volatile\.shared)[\w.:]*\s[^\[;]*\[(%\w+)")
_DECLARED = re.compile(r"^\s*\.reg \.(\w+) (%neutrino_(?!t[a-z]<)\w+);", re.MULTILINE)
_REGISTER = re.compile(r"^\s*\.reg [^\n]*$", re.MULTILINE)
_BASE = "%neutrino_b"
"""How far a launch of a graph moves the maps: the same in all accesses."""


def _instruction(base: str, size: int) -> str:
    """Return the PTX of an access, without what is before and after it."""
    kind, _, value = _VALUES[size].partition(" ")
    if base in _LOADS:
        return f"ld.{_LOADS[base][1]}.{kind} {value}, [%site_address];".replace("ld.generic", "ld")
    if base == "STG":
        return f"st.global.{kind} [%site_address], {value};"
    if base == "ATOMG":
        return f"atom.global.add.u{8 * size} {value}, [%site_address], {value};"
    if base == "REDG":
        return f"red.global.add.u{8 * size} [%site_address], {value};"
    return f"cp.async.ca.shared.global [%word], [%site_address], {size};"


_LOADS: Mapping[str, _Opcode] = {
    "LDG": ("ld", "global"), "LDS": ("ld", "shared"), "LDL": ("ld", "local"), "LD": ("ld", "generic"),
}  # fmt: skip
"""First part of the name of a load that may have code after it → the instruction of PTX."""
_MATRICES_OF_LOADS: Mapping[str, _Opcode] = {"LDS": ("wmma", "load", "shared"), "LD": ("wmma", "load", "generic")}
"""As ``_MATRICES``, of these."""
_TYPES: Mapping[int, tuple[str, ...]] = {
    1: ("b8", "u8", "s8"), 2: ("b16", "u16", "s16"), 4: ("b32", "u32", "s32", "f32"),
    8: ("b64", "u64", "s64", "f64"),
}  # fmt: skip
_ALL_TYPES = frozenset({"b128", *(one for names in _TYPES.values() for one in names)})
_ELEMENTS = (1, 2, 4)
"""How many elements of a type a load may have."""
_ATOMIC = frozenset({"ATOMG", "REDG"})
_SIZES: Mapping[str, tuple[int, ...]] = {"LDGSTS": (4, 8, 16), **dict.fromkeys(_ATOMIC, (4, 8))}
KINDS: tuple[Kind, ...] = tuple((base, size) for base in _ORDINARY for size in _SIZES.get(base, tuple(_VALUES)))
"""The accesses that may have code."""


@dataclass
class AccessCode:
    """The code of a set of probes at accesses for kernels of one architecture, assembled when it is first asked for.

    arch: one of ``ARCHITECTURES``. Raises MachineCodeError for probes of which machine code does not tell where they
    are.
    """

    probes: ProbeSet
    arch: str
    assembler: Assembler
    _parts: dict[int, tuple[Parts, ...]] = field(default_factory=dict)
    _twins: dict[tuple[Kind | None, int], TwinKernel | None] = field(default_factory=dict)
    _named: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if ARCHITECTURES[self.arch] < _FIRST_ARCHITECTURE:
            what = f"only machine code from sm_{_FIRST_ARCHITECTURE} on can have yet"
            raise MachineCodeError(_NAME, f"the probes have code at accesses that {what}")
        for probe in self._at_instructions:
            for pattern in probe.tracepoint.patterns:
                if self._is_after:
                    _check_load(pattern, probe)
                else:
                    _check_pattern(pattern, probe)
        self._check_same()
        if self._is_after:
            self._check_types()

    @cached_property
    def _at_instructions(self) -> tuple[Probe, ...]:
        """The probes that are not at the kernel's entry or ends."""
        return tuple(probe for probe in self.probes.probes if probe.tracepoint.text != "kernel")

    @cached_property
    def _is_after(self) -> bool:
        """Whether there is code after accesses, which may be loads alone then, of any memory."""
        return any(probe.after is not None for probe in self._at_instructions)

    @cached_property
    def _ordinary(self) -> Mapping[str, _Opcode]:
        return _LOADS if self._is_after else _ORDINARY

    @cached_property
    def _matrices(self) -> Mapping[str, _Opcode]:
        return {**_MATRICES, **_MATRICES_OF_LOADS} if self._is_after else _MATRICES

    @cached_property
    def _apart(self) -> ProbeSet:
        """The probes, with all of their code at each access."""
        return self.probes.with_code_apart(SITES)

    @cached_property
    def _kinds(self) -> tuple[Kind, ...]:
        """The accesses that have code: atomic ones only where the probes are the same at all that they may be."""
        if self._is_after:
            return tuple((base, size) for base in _LOADS for size in _VALUES)
        return tuple(kind for kind in KINDS if kind[0] not in _ATOMIC or self._may_differ(kind[0]) is None)

    @property
    def is_at_kernels_only(self) -> bool:
        """Whether no probe is at an access."""
        return not self._at_instructions

    @property
    def maps(self) -> tuple[Map, ...]:
        """The maps of the probes, in the order of the probe block."""
        return self.whole(16).maps

    @property
    def block_size(self) -> int:
        """How many bytes the probe block has."""
        return self.whole(16).block_size

    @cached_property
    def probes_at(self) -> Mapping[Kind, tuple[str, ...]]:
        """The names of the probes at each kind of access."""
        found = {}
        for kind in self._kinds:
            twin = self._twin(kind, 16)
            found[kind] = () if twin is None else tuple(
                dict.fromkeys(site.probe for site in twin.sites if site.number is not None)
            )
        return found

    def kinds(self, code: Code, kernel: str) -> dict[int, Kind]:
        """Return the accesses of a kernel that probes are at, by the number of the instruction.

        code: all of its section. Raises MachineCodeError for accesses that cannot have code: what the probes say of the
        others would be taken for all.
        """
        found: dict[int, Kind] = {}
        lane_number = reads_lane_number(code)
        for index in range(len(code)):
            form = code.form(index)
            base = form.name.partition(".")[0] if form is not None else ""
            low = int(code.words[index, 0])
            if form is None or (base not in self._ordinary and base not in _OTHERS):
                continue
            # Never executed, as ``ptxas`` has some.
            if GUARD.get(low) == ALWAYS and NEGATED.get(low):
                continue
            at = f"{form.name} at {16 * index:#x}"
            if not self._is_named(base):
                continue
            kind = base, form.memory_bytes
            if kind not in self.probes_at or "ZFILL" in form.name.split("."):
                raise MachineCodeError(kernel, f"has {at}, for which the probes have no code in machine code yet")
            if not_displaced(form) is not None:
                raise MachineCodeError(kernel, f"has {at}, but {not_displaced(form)}")
            if self.probes_at[kind]:
                found[index] = kind
        if len(found) > self._most_sites:
            what = f"has {len(found)} accesses, and the probes save under their numbers, which go up to"
            raise MachineCodeError(kernel, f"{what} {self._most_sites - 1}")
        if lane_number:
            for base in sorted({base for base, _ in found.values()} & self._matrices.keys()):
                if not self._probes_of(self._matrices[base]):
                    matrix = ".".join(self._matrices[base])
                    what = f"has {lane_number}, so that {base} may be {matrix}, where no probe is"
                    raise MachineCodeError(kernel, what)
        return found

    @cached_property
    def _most_sites(self) -> int:
        """How many accesses with code a kernel may have."""
        keyed = [self.maps[index].kind for index in lower(self._apart).keyed_by_site]
        return min([SITES, *(kind.most_sites for kind in keyed if isinstance(kind, Keyed))]) if keyed else 1 << 31

    @cached_property
    def unnamed(self) -> frozenset[str]:
        """First parts of the names of accesses that no probe is at."""
        return frozenset(base for base in (*_ORDINARY, *_OTHERS, *self._ordinary) if not self._is_named(base))

    def _is_named(self, base: str) -> bool:
        """Whether a probe is at an instruction of PTX that an access may be made of. base: first part of its name."""
        if base not in self._named:
            origins = _OTHERS.get(base, ())
            if base in self._ordinary:
                origins = self._ordinary[base], *_ALIKE.get(base, ()), *_SAME.get(base, ())
                origins = *origins, *((_MATRICES[base],) if base in _MATRICES else ())
            self._named[base] = any(self._probes_of(origin) for origin in origins)
        return self._named[base]

    def _probes_of(self, origin: _Opcode) -> frozenset[str]:
        """The names of the probes at an instruction of PTX."""
        return frozenset(probe.name for probe in self._at_instructions if _names(probe, origin))

    def _may_differ(self, base: str) -> _Opcode | None:
        """Return what an access may be made of at which other probes are; None if its probes are known."""
        own = self._probes_of(self._ordinary[base])
        for origin in _ALIKE.get(base, ()):
            if self._probes_of(origin) != own:
                return origin
        for origin in _SAME.get(base, ()):
            if self._probes_of(origin) - own:
                return origin
        # Of a matrix it is enough that some probe is there: here each lane's part is an access of its own.
        if base in _MATRICES and not own and self._probes_of(_MATRICES[base]):
            return _MATRICES[base]
        return None

    def at(self, offset: int) -> tuple[Parts, ...]:
        """Return the code for kernels with the probe block at an offset among their parameters, in bytes: as ``ptxas``
        makes it, and one that needs few uniform registers. Raises what ``ProbeCode.at`` does."""
        remainder = offset % 16
        if remainder not in self._parts:
            # What is read lane by lane is not the same in all lanes for a branch to the end of code after an access.
            how = (False,) if self._is_after else (False, True)
            self._parts[remainder] = tuple(self._assembled(remainder + 16, frugal=one) for one in how)
        return self._parts[remainder]

    def _assembled(self, offset: int, *, frugal: bool) -> Parts:
        """Return the code, assembled as it is; where that has no place in a kernel, with what keeps ``ptxas`` from
        computing addresses under branches, and from uniform registers for clocks."""
        try:
            return self._lifted(offset, frugal=frugal, routed=False)
        except MachineCodeError as error:
            try:
                return self._lifted(offset, frugal=frugal, routed=True)
            except MachineCodeError:
                raise error from None

    def _lifted(self, offset: int, *, frugal: bool, routed: bool) -> Parts:
        twin = self.whole(offset)
        texts = self.texts(offset, frugal=frugal, routed=routed)
        cubin = read_cubin(self.assembler.assemble(texts, self.arch).cubin, _NAME)
        words = {name: instruction_words(kernel.code) for name, kernel in cubin.kernels.items()}
        for name, kernel in cubin.kernels.items():
            if kernel.stack:
                raise MachineCodeError(_NAME, f"the probes' code needs {kernel.stack} bytes of stack ({name})")
        base = cubin.kernels[_ENTRY].parameter_base
        shape = Shape((), (), twin.block_offset, twin.block_size, base, sm=ARCHITECTURES[self.arch])
        accesses, after = (
            {kind: words[_name(kind, where)] for kind in self._kinds if _name(kind, where) in words}
            for where in ("at", "after")
        )
        kept = [2 if bits == 64 else 1 for bits in self._kept(twin).values()]
        # One more for addresses on their way.
        kept += [2] * routed
        return lift_parts(words[_ENTRY], words[_EXIT], accesses, kept, shape, _NAME, self.unnamed, after)

    def texts(self, offset: int, *, frugal: bool = False, routed: bool = False) -> str:
        """Return the PTX of all parts. offset: of the probe block, in bytes. frugal: whether what all lanes have in
        common is read lane by lane. routed: whether addresses go by a placeholder of their own."""
        whole = self.whole(offset)
        kept = self._kept(whole)
        head, _, tail = _sections(whole)
        parts = [f".version 8.0\n.target {self.arch}\n.address_size 64\n"]
        signature = _signature(head)
        begin = head.partition("{")[2]
        parts.append(self._part(_ENTRY, signature, head, begin, kept, (), tuple(kept), frugal=False, routed=routed))
        parts.append(self._part(_EXIT, signature, head, tail, kept, tuple(kept), (), frugal=frugal, routed=routed))
        for kind in self._kinds:
            twin = self._twin(kind, offset)
            if not self.probes_at[kind] or twin is None:
                continue
            head, (first, second), _ = _sections(twin)
            if self._is_after:
                befores, afters = zip(*(_around(one, kind) for one in (first, second)), strict=True)
                around = kind, (signature, head), befores, afters, kept
                parts += self._parts_around(*around, frugal=frugal, routed=routed)
                continue
            code = with_site(_without(first, kind), _without(second, kind))
            if set(self._kept(twin)) - set(kept):
                raise MachineCodeError(_NAME, f"the probes keep other registers at {kind[0]}")
            used = tuple(name for name in kept if re.search(rf"{re.escape(name)}\b", code))
            stored = tuple(name for name in used if name != _BASE)
            about = _name(kind), signature, head, code, kept, used, stored
            parts.append(self._part(*about, frugal=frugal, routed=routed, at=True))
        return "\n".join(parts)

    def _parts_around(
        self, kind: Kind, about: tuple[str, str], befores: Sequence[str], afters: Sequence[str],
        kept: Mapping[str, int], *, frugal: bool, routed: bool,
    ) -> list[str]:  # fmt: skip
        """Return the kernels of the code before and after a kind of load, those of them that are not empty.

        about: signature and head. befores, afters: the code at the sites 0 and 1. kept: the registers that all parts
        keep, with their bits. frugal, routed: of ``texts``.
        """
        signature, head = about
        found = []
        before, after = (with_site(*codes) for codes in (befores, afters))
        leap = register_of_leap(before, after, frozenset(kept))
        for where, code in (("at", before), ("after", after)):
            if not code.strip():
                continue
            check_temporaries(code, f"{where} {kind[0]}")
            used = tuple(name for name in kept if re.search(rf"{re.escape(name)}\b", code))
            stored = tuple(name for name in used if name in written_in(code))
            if where == "at":
                code = stored_early(code, {one: _place("st", kept[one], one, KEPT + list(kept).index(one))
                                            for one in stored})  # fmt: skip
                stored = ()
            after_size = kind[1] if where == "after" else 0
            found.append(self._part(
                _name(kind, where), signature, head, code, kept, used, stored, at=True, after=after_size,
                leap=leap if where == "after" else "", frugal=frugal, routed=routed,
            ))  # fmt: skip
        return found

    def _part(
        self, name: str, signature: str, head: str, code: str, kept: Mapping[str, int], loaded: Sequence[str],
        stored: Sequence[str], *, frugal: bool, routed: bool, at: bool = False, after: int = 0, leap: str = "",
    ) -> str:  # fmt: skip
        """Return the kernel of one part. head: of the kernel that it is from, with the registers. loaded, stored: of
        those that are kept. frugal, routed: of ``texts``. after: of code after a load, its bytes. leap: a register that
        is kept, "" for none: where it is 0 the code does nothing."""
        # Lanes under a predicate are those in which it is true, whichever instruction the others execute.
        code = _ACTIVE_UNDER.sub(r"vote.sync.ballot.b32 \2, \1, 0xffffffff;", code)
        code = _INTO_TEMPORARY.sub(r"\1", _ASKED_UNDER.sub(_ASKED, code))
        if _PARTED.search(code):
            raise MachineCodeError(_NAME, f"the probes' code parts the lanes of a warp ({name})")
        numbers = {one: KEPT + number for number, one in enumerate(kept)}
        loads = [_place("ld", kept[one], one, numbers[one]) for one in loaded if one != leap]
        if leap:
            # Only lanes that are together ask each other, so all of them leap or none.
            loads = [
                _place("ld", kept[leap], leap, numbers[leap]), f"setp.eq.u32 %leaps, {leap}, 0;",
                f"@%leaps bra.uni {_END};", *loads,
            ]  # fmt: skip
        if at:
            told = {"%site_address": (64, ADDRESS), "%site_number": (32, SITE)}
            loads += [_place("ld", bits, one, number) for one, (bits, number) in told.items() if one in code]
            # Also where no code asks: without the guard, more than the lanes of the access would be counted.
            loads += [_place("ld", 32, "%site_executed", EXECUTES), "setp.ne.u32 %site_executes, %site_executed, 0;"]
        if after:
            # The last of all, so that little is between its arrival and a clock.
            if "%site_address" in code or "%second" in code:
                raise MachineCodeError(_NAME, "the probes ask after a load for its address, which may be overwritten")
            register, *more = _RESULTS[after]
            loads += [_place("ld", 64 if after >= 8 else 32, register, RESULT), *more]
        stores = [_place("st", kept[one], one, numbers[one]) for one in stored]
        declarations = "" if name == _ENTRY else "\n".join(_REGISTER.findall(head))
        if name != _ENTRY or routed or self._is_after:
            # Where all lanes are together, at the entry, one clock needs no predicate.
            clock = _CLOCK_ALWAYS if self._is_after else _CLOCK
            code = clock.sub(r"mov.u64 \1, 0;\n\t@%here mov.u64 \1, %clock64;", code)
        code = _ACTIVE.sub(r"vote.sync.ballot.b32 \1, %here, 0xffffffff;", code)
        code = _TOGETHER.sub(r"\1, 0xffffffff;", code)
        if frugal:
            code = _UNIFORM.sub(r"\1mov.b\4 \5, 0;\n\t@%here \2\3\4 \5, \6;", code)
        if routed:
            code = _routed(code, KEPT + len(kept))
        code = re.sub(r"\bret;\s*\}\s*$", "", code)
        if leap:
            declarations += "\n\t.reg .pred %leaps;"
            stores.append(f"{_END}:")
        lines = [signature.replace(_signature_name(signature), name), "{", declarations, _HERE, *loads, code, *stores]
        return "\n".join([*lines, f"bar.sync {EXIT_ENDS};", "ret;", "}", ""])

    def _kept(self, twin: TwinKernel) -> dict[str, int]:
        """Return the registers that a twin keeps, with their bits. Raises MachineCodeError for those of other sizes."""
        found = {}
        for kind, name in _DECLARED.findall(twin.text()):
            bits = int(kind[1:]) if kind[1:].isdigit() else 0
            if bits not in (32, 64):
                raise MachineCodeError(_NAME, f"the probes keep a register of the type {kind}")
            found[name] = bits
        return found

    def whole(self, offset: int) -> TwinKernel:
        """Return the twin of a kernel with all kinds of accesses. offset: of the probe block, in bytes."""
        twin = self._twin(None, offset)
        if twin is None:
            raise MachineCodeError(_NAME, "no probe is at an access that has code in machine code")
        return twin

    def _twin(self, kind: Kind | None, offset: int) -> TwinKernel | None:
        """Return the twin of the kernel with one kind of access, twice, or with all; None without probes there."""
        if (kind, offset) not in self._twins:
            rows = [kind, kind] if kind is not None else list(self._kinds if self._at_instructions else ())
            lines = [f"    @%site_executes {_instruction(*row)}" for row in rows if row is not None]
            text = _KERNEL.format(
                target=_LOWERED_FOR, name=_NAME, size=offset, begin=_BEGIN, end=EXIT_ENDS,
                accesses=f"\n    bar.sync {_NEXT};\n".join(lines),
            )  # fmt: skip
            module = probe_module(parse(text), self._apart)
            twin = module.kernels[0] if module.kernels else None
            if twin is not None and (twin.left_out or twin.probes_left_out):
                raise MachineCodeError(_NAME, "some of the probes have no code in PTX at the accesses they are for")
            if twin is not None and kind is not None and all(site.number is None for site in twin.sites):
                twin = None
            self._twins[kind, offset] = twin
        return self._twins[kind, offset]

    def _check_types(self) -> None:
        """Raise MachineCodeError where code differs by the type of what is loaded, of which machine code tells the
        bytes alone."""
        asked = set()
        for base, size in self._kinds:
            opcode = _instruction(base, 4).partition(".b32")[0]
            # Patterns that are the same of two memories are asked of one.
            patterns = frozenset(
                (probe.name, replace(pattern, opcode=tuple(set(pattern.opcode) - {_LOADS[base][1]})))
                for probe in self._at_instructions for pattern in probe.tracepoint.patterns
                if _LOADS[base][1] in pattern.opcode
            )  # fmt: skip
            if (patterns, size) in asked:
                continue
            asked.add((patterns, size))
            own: str | None = None
            for count in _ELEMENTS:
                for one in _TYPES.get(size // count, ()) if size % count == 0 else ():
                    found = self._code_of_type(opcode, one, count)
                    own = found if own is None else own
                    if found != own:
                        vector = f".v{count}" if count > 1 else ""
                        what = f"the probes' code is another at {opcode}{vector}.{one} than at others of {size} bytes"
                        raise MachineCodeError(_NAME, f"{what}, of which machine code does not tell")

    def _code_of_type(self, opcode: str, kind: str, count: int) -> str:
        """Return the code around a load of a type, without what depends on the type alone. count: of elements."""
        bits = max(int(kind[1:]), 16)
        names = [f"%out_{bits}_{number}" for number in range(count)]
        what = f"{{{', '.join(names)}}}" if count > 1 else names[0]
        load = f"{opcode}{f'.v{count}' if count > 1 else ''}.{kind} {what}, [%site_address];"
        text = _KERNEL.format(
            target=_LOWERED_FOR, name=_NAME, size=16, begin=_BEGIN, end=EXIT_ENDS, accesses=f"    {load}"
        )
        text = text.replace("{\n", f"{{\n    .reg .b{bits} {', '.join(names)};\n", 1)
        module = probe_module(parse(text), self._apart)
        if not module.kernels:
            return ""
        if module.kernels[0].left_out or module.kernels[0].probes_left_out:
            raise MachineCodeError(_NAME, "some of the probes have no code in PTX at the loads they are for")
        _, accesses, _ = _sections(module.kernels[0])
        before, _, after = accesses[0].partition(load)
        return numbered(before) + load.partition(" ")[0].partition(".")[0] + numbered(without_arrival(after))

    def _check_same(self) -> None:
        """Raise MachineCodeError where an access may be of several instructions of PTX that differ in their probes."""
        for base in self._ordinary.keys() - _ATOMIC:
            other = self._may_differ(base)
            if other is not None:
                what = f"{base} may be {'.'.join(self._ordinary[base])} or {'.'.join(other)}, where other probes are"
                raise MachineCodeError(_NAME, what)


def _check_pattern(pattern: Pattern, probe: Probe) -> None:
    """Raise MachineCodeError for a pattern of which machine code does not tell."""
    plain = Pattern(pattern.subject, pattern.opcode, without=pattern.without)
    parts = pattern.opcode
    known = bool(parts) and (
        parts[0] in _OF_COPIES or (
            parts[0] in _OF_LANES and set(parts[1:]) <= {*_SPACES, "load", "store"}
            and bool(parts[0] in _OF_ANY_SPACE or _SPACES & set(parts))
        )
    )
    if pattern.subject is not Subject.OPCODE or pattern != plain or not known:
        text = probe.tracepoint.text
        raise MachineCodeError(_NAME, f"the probe {probe.name} is at {text}, of which machine code does not tell")


def _check_load(pattern: Pattern, probe: Probe) -> None:
    """Raise MachineCodeError for a pattern that is not of loads, or of which machine code does not tell: of types it
    tells how many bytes they have (``AccessCode._check_types``)."""
    plain = Pattern(
        pattern.subject, pattern.opcode, without=pattern.without, requires=pattern.requires, excludes=pattern.excludes
    )
    types = {*pattern.without, *(one for parts in (*pattern.requires, *pattern.excludes) for one in parts)}
    parts = set(pattern.opcode[1:]) - _ALL_TYPES
    is_load = pattern.opcode[:1] == ("ld",) and parts <= {space for _, space in _LOADS.values()} and parts
    if pattern.subject is not Subject.OPCODE or pattern != plain or not is_load or types - _ALL_TYPES:
        where = "runs after an instruction" if probe.after is not None else "is with others after instructions"
        what = f"the probe {probe.name} {where}, {probe.tracepoint.text}, of which machine code does not tell"
        raise MachineCodeError(_NAME, what)


def _names(probe: Probe, origin: tuple[str, ...]) -> bool:
    """Whether a probe is at an instruction of PTX: all parts of a pattern are among its. origin: of one word, all
    opcodes that begin with it."""
    parts = set(origin)
    return any(
        pattern.opcode[:1] == origin[:1]
        and (
            (set(pattern.opcode) <= parts and not set(pattern.without) & parts) if len(origin) > 1
            else not set(pattern.opcode) & _NOT_BULK
        )
        for pattern in probe.tracepoint.patterns
    )


def _name(kind: Kind, where: str = "at") -> str:
    return f"{where}_{kind[0]}_{kind[1]}"


def _place(what: str, bits: int, register: str, number: int) -> str:
    """Return the load or store of a placeholder; volatile, so that it stays as wide as it is."""
    where = f"[%lanes_below+{FIRST_OFFSET + DISTANCE * number}]"
    operands = f"{register}, {where}" if what == "ld" else f"{where}, {register}"
    return f"{what}.volatile.shared.b{bits} {operands};"


def _routed(code: str, number: int) -> str:
    """Return code in which the addresses of memory that it writes go by a placeholder: ``ptxas`` does not compute them
    under a branch then, nor find out that they are the same in all lanes. number: of the placeholder."""
    lines: list[str] = []
    known: set[str] = set()
    for line in code.splitlines():
        written = WRITTEN.match(line)
        known -= set(re.findall(r"%\w+", written[1])) if written is not None else set()
        address = _TO_ADDRESS.search(line)
        if address is not None and address[1] not in known:
            known.add(address[1])
            lines += [f"\t{_place(what, 64, address[1], number)}" for what in ("st", "ld")]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _sections(twin: TwinKernel) -> tuple[str, list[str], str]:
    """Return the code up to the first access, that of each access, and that after the last one."""
    marks = rf"bar\.sync (?:{_BEGIN}|{_NEXT}|{EXIT_ENDS});"
    head, *accesses, tail = re.split(marks, twin.text())
    if not accesses:
        raise MachineCodeError(_NAME, "its twin has lost the barriers around accesses")
    return head, accesses, tail


def _signature(head: str) -> str:
    return head[: head.index("{")].rstrip()


def _signature_name(signature: str) -> str:
    return signature[: signature.index("(")].rsplit(maxsplit=1)[-1]


def _without(code: str, kind: Kind) -> str:
    """Return the code at an access without the access. Raises MachineCodeError if it is not there once."""
    wanted = f"@%site_executes {_instruction(*kind)}"
    lines = code.splitlines()
    left = [line for line in lines if line.strip() != wanted]
    if len(left) != len(lines) - 1:
        raise MachineCodeError(_NAME, f"its twin has changed the access ({_name(kind)})")
    return "\n".join(left)


def _around(code: str, kind: Kind) -> tuple[str, str]:
    """Return the code before and after an access. Raises MachineCodeError if it is not there once."""
    before, access, after = code.partition(f"@%site_executes {_instruction(*kind)}")
    if not access or access in after:
        raise MachineCodeError(_NAME, f"its twin has changed the access ({_name(kind)})")
    return before, after
