"""The code that snippets of probes become: instructions on private registers, stores into records, sums.

Inserted code never branches, but over unlikely code (``unlikely_code.py``) and where a map type's statements do, as in
saves to logs: forward, and in a loop over a few saves. It reads the probe block from the kernel's last parameter, and
computes a thread's slot (its place in a map's memory) anew from the special registers at each save, so that no
registers but the probes' own and those of logs are live through the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neutrino.abi.levels import Level
from neutrino.ir.operands import (
    AssemblyOperand,
    Inverted,
    Pair,
    Register,
    SavedOperand,
    SiteOperand,
    SpecialRegister,
)
from neutrino.ir.statements import Assembly
from neutrino.maps.declaration import Layout, Map
from neutrino.probing.ir.probe_set import ProbeSet, Snippet
from neutrino.probing.ir.structured import Save
from neutrino.ptx.instrument.lanes_together import MATCHES
from neutrino.ptx.instrument.log_code import WAITING_ALIGN, DeferredSaves, RoomCode, first_marks
from neutrino.ptx.instrument.map_code import VERSION, ConstantAdds, MapCode, SaveCode, save_version
from neutrino.ptx.instrument.module_parts import Parameters
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.records import Code, Records, Written, widened_half
from neutrino.ptx.instrument.registers import (
    FLOATING,
    Guard,
    LongLived,
    ProbeRegisters,
    Resolver,
    Scratch,
    UnsupportedError,
    Value,
    bits,
    both,
    guarded,
    no_helpers,
    under,
)
from neutrino.ptx.instrument.sums import Sums
from neutrino.ptx.isa.forms import misfit, need, reads_special
from neutrino.ptx.isa.instruction import OF_REQUESTS
from neutrino.ptx.isa.scalars import SPECIAL_NEEDS, SPECIAL_REGISTERS
from neutrino.ptx.snippets.writer import assembly_text, operand_text
from neutrino.ptx.text.inserted import Declaration, Lines, branches, op


def needed_version(snippet: Snippet, architecture: int) -> tuple[int, int]:
    """The lowest PTX ``.version`` in which all instructions of a snippet (a probe's code) exist, (0, 0) if any will do.

    architecture: 80 for ``sm_80``. Raises UnsupportedError where the architecture lacks one of them.
    """
    version = VERSION if snippet.branching is not None and architecture >= MATCHES else (0, 0)
    if not snippet.operands_of_site.isdisjoint(OF_REQUESTS):
        if architecture < MATCHES:
            raise UnsupportedError(
                f"sectors of lanes need sm_{MATCHES}, the kernel is for sm_{architecture}",
                f"the kernel compiled for sm_{MATCHES} or newer",
            )
        version = VERSION
    for statement in snippet.straight:
        if isinstance(statement, Save):
            version = max(version, save_version(statement.map, architecture))
            continue
        special = (SPECIAL_NEEDS.get(item.name) for item in statement.operands if isinstance(item, SpecialRegister))
        for needed in (need(statement.opcode), *special):
            if needed is None:
                continue  # every version has it
            least_version, least_architecture = needed
            if architecture < least_architecture:
                raise UnsupportedError(
                    f"{assembly_text(statement)!r} needs sm_{least_architecture}, "
                    f"the kernel is for sm_{architecture}",
                    f"the kernel compiled for sm_{least_architecture} or newer, or a probe without "
                    f"{statement.opcode.partition('.')[0]}",
                )
            version = max(version, least_version)
    return version


# How a block's number gives them, divided by the size of the clusters.
_TOGETHER, _MANY_SITES = 8, 128
"""Saves that are written together, at most; and more sites than a body has as a rule."""
_BY_CLUSTER_SIZE = {"%clusterid": "div", "%cluster_ctaid": "rem"}
_COMPUTES_ONLY = frozenset(
    [
        "abs", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "cvt", "div", "fma", "isspacep", "lop3",
        "mad", "max", "min", "mov", "mul", "neg", "not", "or", "popc", "prmt", "rem", "selp", "setp", "shf", "shl",
        "shr", "sub", "xor",
    ]
)  # fmt: skip
"""Instructions that only compute from registers, the same in each thread whatever the others do."""


def computes_only(opcode: str) -> bool:
    """Return whether an instruction only computes a result, so that threads which do not need the result may run it,
    too."""
    return opcode.partition(".")[0] in _COMPUTES_ONLY


class Emission:
    """Turns snippets into the code to insert into one body (of a kernel or a called function), and keeps track of the
    registers that this code needs. It inserts nothing itself: it returns lines of PTX.

    prefix: starts every private register and occurs nowhere in the module. block: name of the probe block's
    parameter. architecture: 80 for ``sm_80``. parameters: the kernel's own, also in functions. Methods raise
    UnsupportedError for what cannot be written.

    kernel: for the body of a function that a kernel calls, the kernel's own emission; block is then the register
    that holds the address of its state, which begins as the probe block does (``module_parts.py``). sites: how many
    the kernel and its functions have; None of a function, and where no map need be as small as it can.

    scratch: gives registers for
    intermediate values; registers, sums: the probes' registers, and the sums, in this body.
    """

    def __init__(
        self, probes: ProbeSet, prefix: str, block: str, architecture: int, parameters: Parameters,
        kernel: Emission | None = None, *, sites: int | None = None,
    ) -> None:  # fmt: skip
        """Set up a translator of probes' code to PTX for one body: a kernel's, or that of a function that it calls.

        Parameters: see the class.
        """
        self._prefix = prefix
        self._parameters = parameters
        # Of the snippet being written: what it reads of the kernel's parameters, by element.
        self._read: dict[str | None, Value] = {}
        # And, by the register that holds it, what it reads of the instruction, where more is known of that.
        self._given: dict[str, Value] = {}
        self._written = Written([])
        # In a function: the registers that hold such values.
        self._for_parameters: dict[str, LongLived] | None = None if kernel is None else {}
        self.architecture = architecture
        # Module variables, by index, whose addresses are loaded at the entry.
        self._variables: set[int] = set()
        # Of the snippet being written: the scratch register of each of its local registers, by name.
        self._locals: dict[str, str] = {}
        # See `keep`.
        self._for_functions: list[LongLived] = []
        # Registers for copies of products, with their types.
        self._products: list[tuple[str, str]] = []
        # Registers that the body has once, with their types.
        self._of_body: dict[str, str] = {}
        self.numbers: Mapping[str, int] = {entry.name: index for index, entry in enumerate(probes.maps)}
        """Of the maps, by name."""
        self.scratch = Scratch(f"{prefix}t")
        self.block = ProbeBlock(
            block, "param" if kernel is None else "local", len(probes.maps), prefix, self.scratch.take
        )
        self.registers: ProbeRegisters = ProbeRegisters(probes, prefix, kernel.registers if kernel else None)
        take, changed = self.scratch.take, self.registers.changed
        records = Records(probes.maps, prefix, self.block, take, changed, kernel._maps.records if kernel else None)
        self.sums: Sums = Sums(
            probes.maps, prefix, self.registers, self.block, take, architecture, kernel.sums if kernel else None
        )
        self._maps: MapCode = MapCode(
            probes, prefix, self.block, take, changed, records, self.sums, architecture,
            kernel._maps if kernel else None, sites,
        )  # fmt: skip

    def keep_lanes_together(self) -> None:
        """Have the threads of a warp that diverge in code that stores records converge right after it, by an
        instruction for that.

        Without it they converge when the GPU lets them, as after a branch of the program. Call it before there are
        functions' emissions.
        """
        self._maps.meets = True

    def note_snippet(self, snippet: Snippet, level: Level) -> None:
        """Announce, before any code is written, that the kernel will hold this snippet (the code of one probe at one
        place).

        Code depends on what other snippets do with a register. One that no snippet writes keeps its initial value, so
        that a 0 in it need not be added to sums. One that a snippet at level warp or block writes, and a snippet that
        runs in more threads reads, must not be changed in the threads that the former is not for.
        """
        self.registers.note(snippet, level)

    def variable(self, index: int) -> str:
        """The register that holds the address of the index-th of the program's module variables, loaded at the kernel's
        entry."""
        self._variables.add(index)
        return f"{self._prefix}v{index}"

    def product_copy(self, kind: str) -> str:
        """Return a new register for a private copy of a product that the program computes. kind: its floating-point
        type."""
        name = f"{self._prefix}m{len(self._products)}"
        self._products.append((name, f"b{bits(kind)}"))
        return name

    def snippet(
        self,
        snippet: Snippet,
        resolve: Resolver = no_helpers,
        guard: Guard | None = None,
        *,
        level: Level,
        waits: bool = False,
        ending: bool = False,
        constant_adds: ConstantAdds | None = None,
        deferred: DeferredSaves | None = None,
        is_whole: bool = False,
        given: Mapping[str, str] | None = None,
    ) -> Code:
        """Return the PTX of a snippet (``before`` or ``after`` code of one probe) at one place.

        resolve: gives the values of helpers, as OUT or ADDR, there. guard: the predicate of the threads that the code
        is for, None for all. level: the probe's. waits: the stores will be inserted further down than the other lines,
        so that what they read is copied. ending: it is at an end of the thread, where the code of
        ``sums.update_registers`` comes first and that of ``end`` follows. constant_adds: gets the constants that all
        threads add to cells in registers, for which there is no code then (``add_constants`` has it); None to have it
        with the rest. deferred: gets saves to be written later, by ``save_all``. is_whole: the whole warp comes here
        together, and once. given: the registers in the kernel of local ones that were computed before, by name.
        """
        code = Code([], [])
        self._locals = {**given} if given else {}
        self._read = {}
        self._given = {}
        self._written = Written([])
        self.registers.change(snippet)
        slots = Slots(self.block, self.scratch.take, of_groups=level is Level.GROUP)
        # In threads without a slot of the level the snippet must not change registers that other snippets use there.
        # What it puts into registers of its own may be meant for the other lanes, and is computed in all threads.
        inside = guard
        if self.registers.needs_mask(snippet, level):
            slot = slots.at(level, code.lines)
            inside = Guard(guarded(slot.inside, guard, self.scratch.take, code.lines), False)
        for statement in snippet.straight:
            if not isinstance(statement, Save):
                # Statements stay in order: stores so far go before this instruction, which may change what they read.
                if code.stores and not waits:
                    if branches(code.stores):
                        self._written.parted = len(self._written.instructions)
                    code.lines += code.stores
                    code.stores.clear()
                is_own = all(register.is_local for register in statement.writes)
                # What other threads compute into registers of the snippet's own nobody reads; and ptxas merges nothing
                # with it.
                is_everywhere = is_own and statement.guard is None and computes_only(statement.opcode)
                when = None if is_everywhere else guard if is_own else inside
                self._instruction(statement, resolve, when, code.lines)
                continue
            save_guard = self._save_guard(statement, inside, code.lines)
            if level is Level.GROUP and statement.map.level is Level.WARP:
                save_guard = self._lowest_lane_of(save_guard, code.lines)
            index = self.numbers[statement.map.name]
            save = SaveCode(
                self._maps, index, statement,
                lambda operand: self._operand(operand, resolve, code.lines), code, slots, save_guard,
                waits=waits, ending=ending, constant_adds=constant_adds, deferred=deferred, given=self._given,
                written=self._written, is_whole=is_whole,
            )  # fmt: skip
            save.write_save()
        if not waits:
            first_marks(code.lines, code.stores)
        return code

    def conditions(
        self, snippet: Snippet, conditions: Sequence[Register], resolve: Resolver = no_helpers,
        guard: Guard | None = None,
    ) -> tuple[Lines, list[str]]:  # fmt: skip
        """Return code that computes predicates, and their registers. resolve, guard: as of ``snippet``."""
        code = self.snippet(snippet, resolve, guard, level=Level.THREAD)
        return code.all, list(map(self._register, conditions))

    def of_body(self, name: str, kind: str) -> str:
        """Return a register that the body has once, for what passes from one place to a later one. kind: its type."""
        self._of_body[f"{self._prefix}o_{name}"] = kind
        return f"{self._prefix}o_{name}"

    def shared(self, register: Register) -> str:
        """Return the register in the kernel for one that all snippets share."""
        return self.registers.use(register.name)

    def add_constants(self, constant_adds: ConstantAdds) -> Lines:
        """Return the code that adds constants to the thread's sums in registers. constant_adds: the constants, by map
        and cell."""
        lines: Lines = []
        for (index, cell), amount in constant_adds.items():
            self.sums.add_amount(index, cell, str(amount), "", lines)
        return lines

    def waiting(self, size: int) -> str:
        """Return the name of a variable in local memory with so many bytes, for what waits for the code that follows.

        It is aligned to ``WAITING_ALIGN``.
        """
        self._maps.waiting_bytes = max(self._maps.waiting_bytes, size)
        return self._maps.waiting_memory

    def save_all(self, deferred: DeferredSaves) -> Lines:
        """Return the code of saves (records of probes) that ``snippet`` has collected at several places, written all
        together."""
        lines: Lines = []
        self._maps.save_all(deferred, lines)
        return lines

    def _save_guard(self, save: Save, guard: Guard | None, lines: Lines) -> Guard | None:
        """The predicate under which a save stores its record: the save's own and that of its snippet, combined; None
        without any.

        Appends code to lines where both have to be combined.
        """
        if save.guard is None:
            return guard
        register = self._register(save.guard)
        if guard is None:
            return Guard(register, save.is_inverted)
        return Guard(both(register, save.is_inverted, guard, self.scratch.take, lines), False)

    def _lowest_lane_of(self, guard: Guard | None, lines: Lines) -> Guard:
        """Return a predicate that is true in one thread of a warp: the lowest lane of those for which the given guard
        holds.

        One lane then saves for its group. Its code goes to lines: after what the snippet has computed so far, such as a
        time.
        """
        here, lower, leads = self.scratch.take("b32"), self.scratch.take("b32"), self.scratch.take("pred")
        lines += [
            op("activemask.b32", here, when=under(guard)),
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, here),
            op("setp.eq.u32", leads, lower, "0"),
        ]
        return Guard(guarded(leads, guard, self.scratch.take, lines), False)

    def entry(self) -> tuple[Lines, Lines]:
        """Return the code for the kernel's entry: declarations of all registers that inserted code names, and their
        first values.

        Call it last, when all code is written.
        """
        of_block, first = self.block.entry()
        declarations = self._declarations() + of_block
        for kept in (*self.long_lived, *self._for_functions):
            declarations.append(kept.declaration)
            first.append(kept.setting)
        return self._with_variables(declarations, first)

    def function_entry(self) -> tuple[Lines, Lines]:
        """Return the code for a called function's entry: declarations of registers, and loads of module variables'
        addresses.

        Call it last, when all code is written. Registers that live through the kernel get no values here: those are in
        the kernel's state.
        """
        return self._with_variables(self._declarations() + [kept.declaration for kept in self.long_lived], [])

    def declare_for_functions(self, register: LongLived) -> None:
        """Have the kernel's ``entry`` declare and set a register that only called functions use.

        From there the value goes to the kernel's state, in which functions find it.
        """
        self._for_functions.append(register)

    @property
    def long_lived(self) -> list[LongLived]:
        """The registers that inserted code uses and that live from the kernel's entry to the end of the thread."""
        return self.registers.long_lived + self._maps.long_lived + list((self._for_parameters or {}).values())

    @property
    def fills_warps(self) -> bool:
        """Whether the body is a kernel's whose warps have all of their lanes, by the size of its blocks."""
        return self._for_parameters is None and self._parameters.fills_warps

    @property
    def threads_in_line(self) -> int:
        """How many threads the blocks of the kernel have, if the body is one's whose text states that they have one
        dimension and fill their warps; else 0."""
        return self._parameters.threads_in_line if self._for_parameters is None else 0

    @property
    def has_logs(self) -> bool:
        """Whether any of the probes' maps is a log (a list of records, in chunks of memory that threads take)."""
        return any(entry.kind.layout is Layout.CHUNKS for entry in self._maps.maps)

    def saves_together(self, sites: int) -> int:
        """Return how many saves to the probes' maps may be written together with those of later sites, 0 for none.

        sites: of the body. Of many, saves to logs are twice as many, so that there is less code for the assembler.
        """
        if self._maps.is_straight:
            return 0
        gathering = [entry for entry in self._maps.maps if entry.kind.gathers(entry, self._maps.lanes)]
        are_many = sites > _MANY_SITES and all(entry.kind.layout is Layout.CHUNKS for entry in gathering)
        return _TOGETHER * (1 + are_many) if gathering else 0

    @property
    def has_end(self) -> bool:
        """Whether something of maps has to be written to memory when a thread ends."""
        return self._maps.has_end

    @property
    def prefix(self) -> str:
        """What the names of all private registers begin with."""
        return self._prefix

    @property
    def room_code(self) -> RoomCode:
        """What writes tests for room in logs of which one lane of a warp saves."""
        return self._maps

    def begin(self) -> Lines:
        """Return the code of probes' maps (tables and logs in GPU memory) for where the kernel begins, after registers
        are set.

        Call it when all other code is written.
        """
        lines: Lines = []
        self._maps.begin(lines)
        return lines

    def end(self) -> Lines:
        """Return the code that writes to memory, where a thread ends, what maps keep in registers.

        That is what the kernel keeps, and its functions as far as their code has been written.
        """
        lines: Lines = []
        self._maps.end(lines)
        return lines

    def maps_of_twin(self) -> tuple[Map, ...]:
        """The probes' maps (tables and logs in GPU memory) as the instrumented kernel needs them, once all code is
        written."""
        return self._maps.of_twin()

    def _declarations(self) -> Lines:
        """Return the declarations of scratch registers, of copies of products, and of local memory for saves written
        together."""
        declarations = self.scratch.declarations()
        declarations += [Declaration("reg", kind, name) for name, kind in self._products]
        declarations += [Declaration("reg", kind, name) for name, kind in self._of_body.items()]
        maps = self._maps
        if maps.waiting_bytes:
            memory = Declaration("local", "b8", maps.waiting_memory, maps.waiting_bytes, align=WAITING_ALIGN)
            declarations.append(memory)
        return declarations

    def _with_variables(self, declarations: Lines, first: Lines) -> tuple[Lines, Lines]:
        """Add the code that loads the addresses of the program's module variables to a function's entry; returns both
        lists.

        declarations: of registers. first: instructions at the entry.
        """
        for index in sorted(self._variables):
            declarations.append(Declaration("reg", "u64", self.variable(index)))
            first.append(self.block.load_variable(index, self.variable(index)))
        return declarations, first

    def _instruction(self, statement: Assembly, resolve: Resolver, guard: Guard | None, lines: Lines) -> None:
        """Append the PTX for one instruction of a snippet (a probe's code), under its own predicate and the snippet's
        guard."""
        own, opcode, when = statement.guard, statement.opcode, guard
        if own is not None:
            # Before the operands, as in the text: this may append code and take scratch registers.
            register = self._operand_text(own, opcode, -1, resolve, lines)
            when = Guard(register, statement.is_inverted)
        is_move = opcode.startswith("mov.")
        moved = self._predicate_move(statement, resolve, lines) if is_move else None
        written, operands = moved or (
            opcode,
            [
                # Most are registers.
                self._register(operand) if isinstance(operand, Register)
                else self._operand_text(operand, opcode, position, resolve, lines)
                for position, operand in enumerate(statement.operands)
            ],
        )  # fmt: skip
        if own is not None and guard is not None:
            when = Guard(both(register, statement.is_inverted, guard, self.scratch.take, lines), False)
        if is_move and opcode.startswith("mov.b"):
            self._check_parameter(statement)
        self._write(written, *operands, when=when, lines=lines)

    def _write(self, opcode: str, *operands: str, when: Guard | None = None, lines: Lines) -> None:
        """Append an instruction to lines, and to what is known of the snippet so far. when: its predicate."""
        instruction = op(opcode, *operands, when=under(when))
        self._written.instructions.append(instruction)
        lines.append(instruction)

    def _predicate_move(self, move: Assembly, resolve: Resolver, lines: Lines) -> tuple[str, list[str]] | None:
        """Return opcode and operands of a move of a value of the program between a predicate and a number; None for
        other moves.

        A predicate becomes 1 or 0; a number becomes whether it is not 0. Raises UnsupportedError for a predicate that
        would go into a register of floats.
        """
        source = move.operands[-1]
        if not isinstance(source, SiteOperand):
            return None
        (target,) = move.writes
        # The target first, in the order in which the operands stand.
        register = self._register(target)
        value = self._site_value(source, resolve, lines)
        if move.opcode == "mov.pred" and value.type != "pred":
            return self._not_zero(value, register, lines)
        if value.type != "pred" or move.opcode == "mov.pred":
            return None
        if not target.type.is_integer:
            raise UnsupportedError(
                f"{value.name or source.text} is a predicate, and goes into no register of {target.type}: "
                "as an integer it is 1 or 0"
            )
        return f"selp.b{bits(target.type)}", [register, "1", "0", value.text]

    def _not_zero(self, value: Value, target: str, lines: Lines) -> tuple[str, list[str]]:
        """Return the instruction (opcode, operands) that sets the predicate ``target`` to whether a number is not 0.

        It is true for a NaN, false for -0.0. Appends code to lines where the number has to be brought into a register
        first.
        """
        text, kind = value.text, value.type or "b64"
        # Numbers and special registers are no operands of all comparisons.
        if value.type is None or text in SPECIAL_REGISTERS:
            text = self.scratch.take(f"b{bits(kind)}")
            lines.append(op(f"mov.{kind}", text, value.text))
        used, width = value.used_as or kind, bits(kind)
        if used in {"f16", "bf16"} and width == 16:
            single = widened_half(text, used, self.scratch.take, lines)
            return "setp.neu.f32", [target, single, "0f00000000"]
        if used in {"f32", "f64"} and bits(used) == width:
            return f"setp.neu.{used}", [target, text, f"0{'f' if width == 32 else 'd'}{0:0{width // 4}x}"]
        # A store takes the lower bits of a register that may be wider.
        if used[0] in "us" and 0 < bits(used) < width:
            whole, text = text, self.scratch.take(f"b{width}")
            lines.append(op(f"and.b{width}", text, whole, str((1 << bits(used)) - 1)))
        return f"setp.ne.b{width}", [target, text, "0"]

    def _check_parameter(self, move: Assembly) -> None:
        """Raise UnsupportedError for a move of a parameter that is a float into a register of integers, or the reverse.

        What other values of the site are, the tracepoint decides; kernels that it matches have parameters of any type.
        """
        target, source = move.operands[:2]
        value = self._read.get(source.element) if isinstance(source, SiteOperand) and source.name == "PARAM" else None
        if value is None or not isinstance(target, Register) or target.type.is_untyped:
            return
        kind = value.used_as or value.type or ""
        if not kind.startswith("b") and (kind in FLOATING) != target.type.is_float:
            which = value.name.partition(".")[2].partition("+")[0].partition(".")[0]
            raise UnsupportedError(
                f"{value.name} is .{kind}, and goes into no register of {target.type}; PARAM.{which}.bits has its bits"
            )

    def _operand_text(
        self, operand: AssemblyOperand, opcode: str, position: int, resolve: Resolver, lines: Lines
    ) -> str:
        """The text of an operand in the twin. position: its index among the operands, -1 for the instruction's guard.

        Appends code to lines where a value has to be brought into a register first. Raises UnsupportedError for a value
        that the instruction does not take.
        """
        if isinstance(operand, Register):
            return self._register(operand)
        if isinstance(operand, Inverted):
            return f"!{self._operand_text(operand.operand, opcode, position, resolve, lines)}"
        if isinstance(operand, Pair):
            return f"{self._register(operand.first)}|{self._register(operand.second)}"
        if isinstance(operand, SpecialRegister):
            return self._special(operand.name, lines)
        if not isinstance(operand, SiteOperand):
            return operand.text
        value = self._site_value(operand, resolve, lines)
        # Types of the program's operands are known only here, not when the snippet was verified.
        fault = misfit(opcode, position, operand.text, value.type) if position >= 0 else None
        if fault is not None and value.loaded is not None and value.type is not None:
            # A load may extend what it loads into a wider register. Those of 8 bits are in registers of 16.
            width, wider = max(value.loaded, 16), bits(value.type)
            if opcode == f"mov.b{width}" and width < wider and not value.type.startswith("f"):
                name = self.scratch.take(f"b{width}")
                self._write(f"cvt.u{width}.u{wider}", name, value.text, lines=lines)
                return name
        if fault is not None:
            raise UnsupportedError(fault)
        # An operand of the program may be a special register, which most instructions do not take.
        if value.text in SPECIAL_REGISTERS and not reads_special(opcode):
            name = self.scratch.take(f"b{bits(value.type or '')}")
            self._write(f"mov.{value.type}", name, value.text, lines=lines)
            return name
        return value.text

    def _register(self, register: Register) -> str:
        """The register in the instrumented kernel for a register of a probe; for one that is local to a snippet a
        scratch register."""
        known = self._locals.get(register.name)
        if known is not None:
            return known
        if not register.is_local:
            return self.registers.use(register.name)
        width = bits(register.type)
        known = self._locals[register.name] = self.scratch.take(f"b{width}" if width else "pred")
        return known

    def _site_value(self, operand: SiteOperand, resolve: Resolver, lines: Lines) -> Value:
        """Return the value of a helper (a name in a probe, such as OUT or PARAM.0) at the place of the code.

        A parameter of the kernel is the same at all places; code that loads it is appended to lines. Raises
        UnsupportedError where there is no such value.
        """
        if operand.name != "PARAM":
            value = resolve(operand.name, operand.element)
            if operand.name == "ELECTED":
                self._written.elected.add(value.text)
            if value.choices or value.address:
                self._given[value.text] = value
            # The program may read a special register itself.
            text = self._special(value.text, lines)
            return value if text == value.text else replace(value, text=text)
        if operand.element not in self._read:
            part = self._parameters.find(operand.element)
            if self._for_parameters is None:
                # No predicate: where a product and its sum may stand around the code, no load may have one.
                register = self.scratch.take(f"b{part.bits}")
                lines.append(part.load(register))
            else:
                kept = part.long_lived(self._prefix)
                register = self._for_parameters.setdefault(kept.name, kept).name
            self._read[operand.element] = part.value(register, operand.text)
        return self._read[operand.element]

    def _operand(self, operand: SavedOperand, resolve: Resolver, lines: Lines) -> Value:
        """The value of an operand of a save (a probe's statement that records values), as a register or an immediate.

        resolve: see ``snippet``. Appends code to lines where it has to be loaded.
        """
        if isinstance(operand, SiteOperand):
            return self._site_value(operand, resolve, lines)
        if isinstance(operand, Register):
            return Value(self._register(operand), operand.type)
        if isinstance(operand, SpecialRegister):
            return Value(self._special(operand.name, lines), operand.type)
        return Value(operand_text(operand), None)

    def _special(self, name: str, lines: Lines) -> str:
        """The operand that has the value of a special register: its name, or a register after code appended to lines.

        Where the kernel does not state the size of its clusters, ptxas 13.0 computes ``%clusterid`` and
        ``%cluster_ctaid`` by a multiplication of floating-point numbers, so that the twin's arithmetic is not the
        original's. Divided here they have the same values, and no such instruction.
        """
        register, _, axis = name.partition(".")
        if register not in _BY_CLUSTER_SIZE or self._parameters.states_cluster_size:
            return name
        place, size = self.scratch.take("b32"), self.scratch.take("b32")
        lines += [
            op("mov.u32", place, f"%ctaid.{axis}"),
            op("mov.u32", size, f"%cluster_nctaid.{axis}"),
            op(f"{_BY_CLUSTER_SIZE[register]}.u32", place, place, size),
        ]
        return place
