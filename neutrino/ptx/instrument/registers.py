"""Registers, operands, predicates and arithmetic of inserted code: the probes' own registers, and scratch registers.

The program has none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.probing.ir.probe_set import ProbeSet, Snippet
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.inserted import Declaration, Lines, op

FLOATING = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64", "f32x2"})
"""Register types that integer instructions do not take."""


def bits(register_type: str) -> int:
    """The width in bits of a PTX register type, written without its dot; 0 for ``pred`` and for what is no scalar."""
    return TYPE_BYTES.get(register_type, 0) * 8


class UnsupportedError(Exception):
    """A twin cannot do what a probe asks for in this kernel; the message says what. remedy: what helps, "" if that is
    not known."""

    def __init__(self, message: str, remedy: str = "") -> None:
        """Make the error that a twin cannot do what a probe asks for. remedy: what helps, "" if that is not known."""
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True)
class Value:
    """An operand as PTX text. type: its register type, None for an immediate.

    used_as: the type by which an instruction of the program uses it, None where that says nothing. name: what it is
    called in messages, "" for values of the probe's own. loaded: of what a load gives, how many bits it loads: the
    lower ones of a register that may be wider; None of all else. choices: of an integer in a register that has one of a
    few values, these, ascending; () where that is not known. address: of an address, the program's register and what is
    added to it. sites: of the number of a site that each lane has for itself, all of these: a site is for the lane that
    has its number, modulo the lanes of a warp.
    """

    text: str
    type: str | None
    used_as: str | None = None
    name: str = ""
    loaded: int | None = None
    choices: tuple[int, ...] = ()
    address: tuple[str, int] | None = None
    sites: tuple[int, ...] = ()


Resolver = Callable[[str, str | None], Value]
"""(helper, element x/y/z/w or None) → its value at the site; raises UnsupportedError where it has none."""


def no_helpers(helper: str, element: str | None) -> Value:
    """Refuse every helper (a name in a probe's code, as OUT): the Resolver at a kernel's entry and ends, where there is
    no instruction."""
    raise UnsupportedError(f"{helper} has no meaning at the kernel's entry and ends")


@dataclass(frozen=True)
class PrivateNames:
    """Names that occur nowhere in a module's text.

    prefix: begins every register of the probes. block: the parameter with the probe block. state: the kernel's state
    in local memory; state_address: the register with its address. label: begins labels.
    """

    prefix: str
    block: str
    state: str

    @property
    def state_address(self) -> str:
        """The register with the address of the kernel's state (values of probes' registers for called functions, in
        local memory)."""
        return f"{self.prefix}state"

    @property
    def label(self) -> str:
        """What the names of all labels of inserted code begin with."""
        return f"$L__{self.prefix[1:]}"

    @classmethod
    def for_text(cls, text: str) -> PrivateNames:
        """Return names that a module's text does not use: the usual ones, each made longer until the text does not have
        it."""
        if "neutrino_" not in text:
            text = ""  # all three hold that word: one search in place of three
        prefix = "%neutrino_"
        while prefix in text:
            prefix = prefix[:-1] + "x_"
        block = "__neutrino_block"
        while block in text:
            block += "_"
        state = f"__{prefix[1:]}state"
        while state in text:
            state += "_"
        return cls(prefix, block, state)


_SCRATCH_LETTER = {"b16": "h", "b32": "w", "b64": "d", "pred": "q"}

Take = Callable[[str], str]
"""Type → a register of it that nothing else uses; ``Scratch.take``."""


@dataclass(frozen=True)
class LongLived:
    """A register of probes that lives from the kernel's entry to the end of the thread.

    type: without its dot. initial: its first value, as an operand. move: the type that ``mov`` takes for it. first: the
    instruction that gives it its first value, if that is no ``mov``.
    """

    name: str
    type: str
    initial: str
    move: str
    first: Instruction | None = None

    @property
    def declaration(self) -> Declaration:
        """The ``.reg`` directive that declares this register."""
        return Declaration("reg", self.type, self.name)

    @property
    def setting(self) -> Instruction:
        """The instruction that gives the register its first value, at the kernel's entry."""
        return self.first or op(f"mov.{self.move}", self.name, self.initial)


class _Pool:
    """Registers with numbered names. numbers, most: by type, the number of the next one, and how many were ever in use
    at once."""

    def __init__(self, prefix: str) -> None:
        """Set up registers whose names begin with a prefix, none of them in use."""
        self._prefix = prefix
        self.numbers = dict.fromkeys(_SCRATCH_LETTER, 0)
        self.most = dict.fromkeys(_SCRATCH_LETTER, 0)

    def take(self, kind: str) -> str:
        """Return a register of a type that is not in use."""
        number = self.numbers[kind]
        self.numbers[kind] = number + 1
        self.most[kind] = max(self.most[kind], number + 1)
        return f"{self._prefix}{_SCRATCH_LETTER[kind]}{number}"

    def declarations(self) -> Lines:
        """Return ``.reg`` directives for all registers that were ever taken."""
        return [
            Declaration("reg", kind, f"{self._prefix}{_SCRATCH_LETTER[kind]}", most)
            for kind, most in self.most.items() if most
        ]  # fmt: skip


class Scratch:
    """Allocates private registers, by type. What is taken after ``mark()`` is free again after ``release(mark)``.

    That holds for code which is written in the order in which it stands. A piece of code that is written sooner or
    later stands among code that may have taken the same registers for longer: it is written within ``apart()``.

    prefix: begins every name.
    """

    def __init__(self, prefix: str) -> None:
        """Set up an allocator of scratch registers, none of them in use. prefix: begins every name."""
        self._in_order = self._pool = _Pool(prefix)
        self._apart = _Pool(f"{prefix}a")

    def take(self, kind: str) -> str:
        """Return a register that is not in use. kind: its type, b16, b32, b64 or pred. Raises UnsupportedError for
        another one."""
        if kind not in _SCRATCH_LETTER:
            raise UnsupportedError(f"a .{kind} register cannot be copied")
        return self._pool.take(kind)

    def mark(self) -> dict[str, int]:
        """Return which registers are in use now, so that ``release`` can free those that are taken from now on."""
        return dict(self._pool.numbers)

    def release(self, mark: dict[str, int]) -> None:
        """Free all registers that were taken since ``mark`` returned this."""
        self._pool.numbers = dict(mark)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While the context is open, give registers to a piece of code that stands elsewhere than what is written
        before and after it.

        Only such pieces use them. None of them may be needed after the piece, nor in a piece that another one becomes
        part of, beyond that place.
        """
        pool, self._pool = self._pool, self._apart
        mark = self.mark()
        try:
            yield
        finally:
            self.release(mark)
            self._pool = pool

    def skip_used(self) -> None:
        """From now on take only registers that were never in use before, until ``release``."""
        self._pool.numbers = dict(self._pool.most)

    def declarations(self) -> Lines:
        """Return ``.reg`` directives for all registers that were ever taken."""
        return self._in_order.declarations() + self._apart.declarations()


@dataclass(frozen=True)
class Guard:
    """The predicate register under which inserted code counts, and whether it is negated."""

    register: str
    negated: bool

    @property
    def text(self) -> str:
        """The predicate as an instruction has it after ``@``: ``%p`` or ``!%p``."""
        return f"!{self.register}" if self.negated else self.register


def under(guard: Guard | None) -> str:
    """A guard as the argument ``when`` of ``op`` takes it: the predicate's text, "" for None, which stands for all
    threads."""
    return guard.text if guard is not None else ""


def both(register: str, negated: bool, guard: Guard, take: Take, lines: Lines) -> str:
    """Return a new predicate register: a predicate register (or its negation) AND a guard.

    negated: the register is taken as negated. take: gives a new register of a type. Appends the code to lines.
    """
    joined = take("pred")
    other = positive(guard, take, lines)
    if negated:
        lines.append(op("not.pred", joined, register))
        register = joined
    lines.append(op("and.pred", joined, register, other))
    return joined


def positive(guard: Guard, take: Take, lines: Lines) -> str:
    """Return a register with a guard's value that need not be negated: the guard's own register, or a new one with its
    negation.

    take: gives a new register of a type. Appends the code to lines.
    """
    if not guard.negated:
        return guard.register
    name = take("pred")
    lines.append(op("not.pred", name, guard.register))
    return name


def guarded(inside: str, guard: Guard | None, take: Take, lines: Lines) -> str:
    """Return a predicate register: the predicate ``inside`` AND a guard, or ``inside`` itself where there is no guard.

    take: gives a new register of a type. Appends the code to lines.
    """
    if guard is None:
        return inside
    joined = take("pred")
    lines.append(op("and.pred", joined, inside, positive(guard, take, lines)))
    return joined


# By level, those at which more threads run a snippet.
_WIDER = {Level.BLOCK: (Level.WARP, Level.THREAD), Level.WARP: (Level.THREAD,), Level.THREAD: (), Level.GROUP: ()}


class ProbeRegisters:
    """The probes' registers in one body. prefix: starts every private register.

    kernel: for the body of a function that a kernel calls, the registers of the kernel; else None. types: of the
    registers that are kept to the end of the thread (not local to a snippet), by name. changed: private names of kept
    registers that the body's code writes.
    """

    def __init__(self, probes: ProbeSet, prefix: str, kernel: ProbeRegisters | None) -> None:
        """Set up the probes' registers in one body, none in use yet. prefix: begins their names in the instrumented
        kernel. kernel: for a called function's body, the kernel's registers; else None."""
        self._registers = probes.registers
        self._prefix = prefix
        kept = [register for register in probes.registers if not register.is_local]
        self.types = {register.name: register.type for register in kept}
        self._initial = {register.name: register.initial for register in kept}
        self.changed: set[str] = set()
        # The probes' names of the registers that the body's code names.
        self._used: set[str] = set()
        # By level, the registers that snippets of the kernel, and of functions that it calls, write; and that they
        # name.
        self._written: dict[Level, set[str]] = kernel._written if kernel else {level: set() for level in Level}
        self._named: dict[Level, set[str]] = kernel._named if kernel else {level: set() for level in Level}

    def note(self, snippet: Snippet, level: Level) -> None:
        """Announce a snippet (a probe's code) that the kernel will hold, with the registers that it names and writes.

        Called for all snippets before any code is written, since that decides about the code.
        """
        self._written[level] |= snippet.written
        self._named[level] |= snippet.named

    def change(self, snippet: Snippet) -> None:
        """Note that the code of a snippet (a probe's code) is now in the body, so that the registers that it writes are
        changed there."""
        self.changed |= {self.private(name) for name in snippet.written if name in self.types}

    def needs_mask(self, snippet: Snippet, level: Level) -> bool:
        """Return whether a snippet must only run in the one thread of each warp or block that its level is for.

        That is so if other snippets, at a level at which more threads run them, use a register that it writes.
        """
        return not all(self._named[wider].isdisjoint(snippet.written) for wider in _WIDER[level])

    def may_use_counters(self, names: Iterable[Hashable], level: Level) -> bool:
        """Return whether sums may be computed at the thread's end from counters that count in every thread.

        They may not where snippets at a level with more threads use a sum, too: then it must be right in threads that
        the adding snippets are not for. names: of registers, or fields of maps, as ``additions.sums_added_to`` gives
        them. level: of the snippets that add.
        """
        named_wider = [self._named[wider] for wider in _WIDER[level]]
        return not any(name in named for name in names for named in named_wider)

    def private(self, name: str) -> str:
        """The name in the instrumented kernel of a register that a probe calls ``%name``."""
        return f"{self._prefix}r_{name[1:]}"

    def use(self, name: str) -> str:
        """Return the name in the instrumented kernel of a probe's register, and note that the body's code uses it."""
        self._used.add(name)
        return self.private(name)

    def initial(self, name: str) -> int:
        """The value that a probe's register has at the kernel's entry; of a float its bits."""
        return self._initial[name]

    def is_zero(self, operand: str) -> bool:
        """Whether an operand of a probe is known to be 0: the number, or a register that is 0 at first and that no
        snippet writes."""
        if operand == "0":
            return True
        if self._initial.get(operand) != 0:
            return False
        return not any(operand in names for names in self._written.values())

    @property
    def long_lived(self) -> list[LongLived]:
        """The probes' registers that the body's code uses, which live from the kernel's entry to the end of the thread.
        """
        return [
            LongLived(self.private(entry.name), entry.type, _initial(entry.type, entry.initial), _move_type(entry.type))
            for entry in self._registers
            if entry.name in self._used
        ]


def _move_type(register_type: str) -> str:
    """Return the type by which ``mov`` copies a register: it has none for 16-bit floats and packed pairs."""
    if register_type in {"pred", "f32", "f64"}:
        return register_type
    return f"b{bits(register_type)}"


def _initial(register_type: str, value: int) -> str:
    """Return the first value of a register as an operand. value: of a float its bits."""
    if register_type == "f32":
        return f"0f{value:08X}"
    if register_type == "f64":
        return f"0d{value:016X}"
    return str(value)
