"""AMD's assembler and disassembler in this process: ``libLLVM.so`` of a ROCm or of AMD's wheel, by LLVM's C interface.

Nothing is started and no file is written. The functions and their parameters are those of ``llvm-c/Core.h``,
``Disassembler.h`` and ``TargetMachine.h``.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from neutrino.elf.constants import SHT_SYMTAB
from neutrino.elf.reader import Elf
from neutrino.errors import NeutrinoError, ToolMissingError
from neutrino.gcn.instruction_text import Decoded, decoded
from neutrino.toolchain.llvm_location import LLVM_HINT, chosen_llvm, llvm_candidates, system_libraries

TRIPLE = "amdgcn-amd-amdhsa"
WORD = 4
"""Bytes of the unit of machine code: every instruction is one or more of these."""

_STAND_INS = Path(__file__).resolve().parent / "lib"
_STAND_IN_NAMES = ("librocm_sysdeps_z.so.1", "librocm_sysdeps_zstd.so.1")
_INITIALIZERS = ("TargetInfo", "Target", "TargetMC", "AsmParser", "AsmPrinter", "Disassembler")
_PROCESSOR = re.compile(r"gfx[0-9a-f]+|gfx[0-9]+(-[0-9]+)?-generic")
_DIAGNOSTIC = re.compile(r"<inline asm>:(\d+):(\d+): (.*)")
_TEXT_SIZE = 512
"""Limit in bytes of an instruction's text; the longest seen has 130."""
# LLVM 23 crashes when it prints these, which no compiler writes, on processors before gfx11: SDWA forms with the value
# 7 of a selection, or 3 of what happens to unused bits, both reserved; buffer instructions whose offset were a literal;
# VOP3 forms with a literal, which gfx10 is the first to have.
_VOP3, _BUFFERS = 0b110100, (0b111000, 0b111010)
_LITERAL, _SDWA = 255, 0xF9
_WITH_UNPRINTABLE = ("gfx8", "gfx9", "gfx10")
_COMPARISON = 0x3E
"""VOPC in the upper 7 bits of the first word: its second word has a register in place of the two fields of a result."""
_RESERVED_SELECTION, _RESERVED_UNUSED = 7, 3
_NOT_DISASSEMBLED = ("gfx6", "gfx7")
"""Processors for which it ends the process ("disassembly not yet supported for subtarget")."""
_DATA = Decoded(WORD, "", "", (), (), None, is_branch=False)
"""A word that is no instruction."""
_MOST_CODES = 2_000
"""Assembled texts that are kept."""
_MOST_TEXTS = 40_000
"""Limit of the instructions that are kept, of all processors together."""
_LONGEST = 20
"""Bytes of the longest instruction of any processor."""
_END_OF_TEXT, _PIECE = "neutrino_end_of_text", "neutrino_piece"
_LABEL = re.compile(r"^\s*([\w.$]+):", re.MULTILINE)
_OBJECT_FILE = 1
# Text is in no function: the level changes no byte. Setting up what optimizes took half as long.
_NOT_OPTIMIZED, _POSITION_INDEPENDENT, _DEFAULT_MODEL = 0, 2, 0

# LLVM's R_AMDGPU_REL32, _REL64, _REL32_LO, _REL32_HI ("Relocation Records" of the user guide for AMDGPU).
_REL32, _REL64, _REL32_LO, _REL32_HI = 4, 5, 10, 11
_FIELDS = {_REL32: (4, 0), _REL64: (8, 0), _REL32_LO: (4, 0), _REL32_HI: (4, 32)}
"""Bytes of the field of each kind, and by how many bits the value is shifted."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What the assembler says about a line. line, column: from 1, 0 if it names none. source: that line."""

    line: int
    column: int
    message: str
    source: str


class AssemblyError(NeutrinoError):
    """Text that the assembler refuses, or warns about: the text is the cause.

    complaints: all of them, never empty. line, message: of the first.
    """

    def __init__(self, complaints: tuple[Complaint, ...]) -> None:
        """Build the message from the first complaint: its line, what is wrong, and that line's text."""
        first = complaints[0]
        quoted = f": {first.source.strip()!r}" if first.source.strip() else ""
        super().__init__(f"GCN line {first.line}: {first.message}{quoted}")
        self.complaints = complaints

    @property
    def line(self) -> int:
        """The line of the text that the assembler complained of first, from 1; 0 if it names none."""
        return self.complaints[0].line

    @property
    def message(self) -> str:
        """What the assembler complained of first, without the line."""
        return self.complaints[0].message


@functools.cache
def find_llvm(processor: str | None = None) -> Llvm:
    """Return the LLVM to use: the one in NEUTRINO_LLVM, else that of a ROCm on this machine, else that of AMD's wheel.

    processor: such as ``gfx942``: one that knows it. Raises ToolMissingError when there is none.
    """
    chosen = chosen_llvm()
    problems = []
    for path in [chosen] if chosen is not None else llvm_candidates():
        try:
            llvm = _opened(path)
        except ToolMissingError as error:
            problems.append(error.hint)
            continue
        if processor is None or llvm.knows(processor):
            return llvm
        problems.append(f"{path} does not know {processor}")
    raise ToolMissingError("AMD's LLVM", "; ".join([*problems, LLVM_HINT]))


@functools.cache
def _opened(path: Path) -> Llvm:
    """Return the LLVM in a library, loaded once for each path. Raises ToolMissingError if it cannot be used."""
    return Llvm(path)


class Llvm:
    """An LLVM for AMD's GPUs, for any thread. path: of its library. version: such as (23, 0, 0); name: for people, with
    the version. identity: differs between builds, for keys of caches."""

    def __init__(self, path: Path) -> None:
        """Load the library. Raises ToolMissingError when it cannot be loaded, or is no LLVM for AMD's GPUs."""
        # Found by name when libLLVM.so is loaded. Those that belong to it come first; a process that loads a ROCm
        # later would find the stand-ins in its place, so they are loaded where nothing else is alone.
        for name, real in zip(_STAND_IN_NAMES, system_libraries(path), strict=True):
            library = real or _STAND_INS / name
            if library.is_file():
                ctypes.CDLL(str(library))
        try:
            # Disassembling an instruction takes two microseconds, for which no other thread need run.
            self._quick: Any = ctypes.PyDLL(str(path))
            self._c: Any = ctypes.CDLL(str(path))
            _declare(self._c)
            _declare(self._quick)
            for name in _INITIALIZERS:
                getattr(self._c, f"LLVMInitializeAMDGPU{name}")()
        except (OSError, AttributeError) as error:
            raise ToolMissingError("AMD's LLVM", f"{path} cannot be used ({error})") from error
        self.path = path
        numbers = [ctypes.c_uint() for _ in range(3)]
        self._c.LLVMGetVersion(*map(ctypes.byref, numbers))
        self.version = (numbers[0].value, numbers[1].value, numbers[2].value)
        status = path.stat()
        self.name = f"LLVM {'.'.join(map(str, self.version))}"
        self.identity = f"{self.name} {status.st_size}"
        self._lock = threading.RLock()
        """Held while assembling: a target machine is for one thread at a time."""
        self._disassemblers: dict[tuple[str, str], int] = {}
        self._machines: dict[tuple[str, str], int] = {}
        self._target = 0
        self._known: dict[str, bool] = {}
        self._decoded: dict[tuple[str, str], dict[int, Any]] = {}
        """Instructions by their first word, for each processor and its features; of longer ones by their next word."""
        self._kept = 0
        self._codes: dict[tuple[str, str, str], bytes] = {}
        """Machine code of texts that were assembled apart, by processor, its features and the text."""

    def knows(self, processor: str) -> bool:
        """Whether this LLVM has the instructions of a processor, such as ``gfx942``."""
        if processor not in self._known:
            # It accepts any name, says on stderr that it ignores it, and goes on with a processor of generation 0,
            # for which it does not define this symbol.
            generation = '.if .amdgcn.gfx_generation_number == 0\n.error "unknown"\n.endif'
            try:
                self._known[processor] = bool(_PROCESSOR.fullmatch(processor)) and bool(
                    self._object(generation, processor, "")
                )
            except AssemblyError:
                self._known[processor] = False
        return self._known[processor]

    def disassemble(
        self, code: bytes | memoryview, processor: str, features: str = ""
    ) -> list[tuple[int, int, str | None]]:
        """Disassemble machine code: offset, size and text of each instruction, in order, without a gap.

        The text is None for a word that is no instruction, and for what is left where the code ends within one. Targets
        of branches are numbers, as they are encoded. processor: such as ``gfx942``. features: LLVM's, such as
        ``+wavefrontsize64,-wavefrontsize32``. Raises ToolMissingError for a processor that it does not know.
        """
        rows = self.decode(code, processor, features)
        offsets = accumulate((row.size for row in rows), initial=0)
        return [(offset, row.size, row.text or None) for offset, row in zip(offsets, rows, strict=False)]

    def decode(self, code: bytes | memoryview, processor: str, features: str = "") -> list[Decoded]:
        """Decode machine code: what is known of each instruction without its place; all fields but the size are empty
        where ``disassemble`` has no text. Parameters and errors as there."""
        self._check(processor)
        if processor.startswith(_NOT_DISASSEMBLED):
            raise ToolMissingError("AMD's LLVM", f"{self.path} does not disassemble code for {processor}")
        known = self._decoded.setdefault((processor, features), {})
        code, count = bytes(code), len(code) // WORD
        words = struct.unpack_from(f"<{count}I", code)
        found: list[Decoded] = []
        index = 0
        while index < count:
            # Most instructions occur more than once. What a word is not alone is looked up with the next one.
            row, end = known.get(words[index]), index + 1
            if row.__class__ is Decoded:
                found.append(row)
                index = end
                continue
            while row.__class__ is dict and end < count:
                row, end = row.get(words[end]), end + 1
            if row is None or row.__class__ is dict:
                row = self._instruction(code[WORD * index : WORD * index + _LONGEST], processor, features)
                end = index + row.size // WORD
                if row.text:
                    self._keep(row, words[index:end], known)
            found.append(row)
            index = end
        if len(code) % WORD:
            found.append(_DATA._replace(size=len(code) % WORD))
        return found

    def _keep(self, row: Decoded, words: Sequence[int], known: dict[int, Any]) -> None:
        """Keep an instruction by its words. known: what is kept of its processor."""
        self._kept += 1
        if self._kept > _MOST_TEXTS:
            for each in self._decoded.values():
                each.clear()
            self._kept = 1
        for word in words[:-1]:
            known = known.setdefault(word, {})
        known[words[-1]] = row

    def _instruction(self, code: bytes, processor: str, features: str) -> Decoded:
        """Decode the instruction at the beginning of code, a word or more; data if it is none."""
        if not (processor.startswith(_WITH_UNPRINTABLE) and _is_unprintable(code)):
            # It crashes on an instruction whose literal is cut off (LLVM 23), so there are always bytes after it.
            text = ctypes.create_string_buffer(_TEXT_SIZE)
            length: int = self._quick.LLVMDisasmInstruction(
                self._disassembler(processor, features),
                code + bytes(_LONGEST),
                len(code) + _LONGEST,
                0,
                text,
                _TEXT_SIZE,
            )
            if 0 < length <= len(code):
                return decoded(length, text.value.decode("ascii", "replace").replace("\t", " ").strip())
        return _DATA

    def assemble(
        self, text: str, processor: str, features: str = "", symbols: Mapping[str, int] | None = None
    ) -> bytes:
        """Assemble a text; return its machine code, which is that of the section ``.text``.

        symbols: values of those that the text refers to by ``@rel32@lo`` and so on and does not define, relative to the
        beginning of the code. Raises AssemblyError for whatever the assembler says, warnings included, and for a symbol
        without a value; ToolMissingError for a processor that it does not know.
        """
        code, _ = self._assembled(text, processor, features, symbols or {})
        return code

    def assemble_each(self, texts: Sequence[str], processor: str, features: str = "") -> list[bytes]:
        """Assemble texts, none of which refers to another; return the machine code of each. Errors as ``assemble``.

        Those without a common label are assembled at once, since the assembler takes most of a millisecond to
        begin. What was assembled lately is remembered: twins of different kernels have much code in common.
        """
        if len(self._codes) > _MOST_CODES:
            self._codes.clear()
        keys = [(processor, features, text) for text in texts]
        found = {number: self._codes[key] for number, key in enumerate(keys) if key in self._codes}
        waiting = [(number, text) for number, text in enumerate(texts) if number not in found]
        while waiting:
            taken: set[str] = set()
            now: list[tuple[int, str]] = []
            later: list[tuple[int, str]] = []
            for number, text in waiting:
                labels = set(_LABEL.findall(text))
                (later if labels & taken else now).append((number, text))
                taken |= labels
            together = "".join(f"{_PIECE}{number}:\n{text}\n" for number, text in now)
            code, defined = self._assembled(together, processor, features, {})
            ends = [*(defined[f"{_PIECE}{number}"] for number, _ in now[1:]), len(code)]
            for (number, _), end in zip(now, ends, strict=True):
                found[number] = self._codes[keys[number]] = code[defined[f"{_PIECE}{number}"] : end]
            waiting = later
        return [found[number] for number in range(len(texts))]

    def _assembled(
        self, text: str, processor: str, features: str, symbols: Mapping[str, int]
    ) -> tuple[bytes, Mapping[str, int]]:
        """Return the code of a text, and where the labels in it are that are not local. Parameters and errors as
        ``assemble``."""
        self._check(processor)
        object_file = self._object(f"{text}\n.text\n{_END_OF_TEXT}:\n", processor, features)
        elf = Elf(memoryview(object_file), "assembled text")
        section = elf.section(".text")
        if section is None:
            return b"", {}
        table = list(elf.symbols(SHT_SYMTAB))
        defined = {symbol.name: symbol.value for symbol in table if symbol.section == section.index}
        # LLVM fills the section up after the text.
        code = bytearray(elf.contents(section)[: defined[_END_OF_TEXT]])
        for relocations in elf.relocation_tables.get(section.index, ()):
            for relocation in elf.relocations(relocations):
                symbol = table[relocation.symbol]
                value = symbol.value if symbol.section == section.index else symbols.get(symbol.name)
                if value is None or relocation.type not in _FIELDS:
                    what = f"{symbol.name} has no value" if value is None else f"relocation {relocation.type}"
                    raise AssemblyError((Complaint(0, 0, what, ""),))
                width, shift = _FIELDS[relocation.type]
                field = (value + relocation.addend - relocation.offset) >> shift & (1 << 8 * width) - 1
                code[relocation.offset : relocation.offset + width] = field.to_bytes(width, "little")
        return bytes(code), defined

    def _object(self, text: str, processor: str, features: str) -> bytes:
        """Return the object file (ELF) that a text assembles to. Raises AssemblyError for whatever the assembler says.
        """
        if "\0" in text:
            # For the assembler the text would end there.
            line = text.count("\n", 0, text.index("\0")) + 1
            raise AssemblyError((Complaint(line, 0, "a NUL character", text.split("\n")[line - 1]),))
        source = text.encode("utf-8", "replace")
        complaints: list[str] = []
        with self._lock, self._context() as context:
            # A wrong text is a success to the function that assembles it: only the handler hears of it.
            handler = _HANDLER(lambda info, _: complaints.append(self._description(info)))
            self._c.LLVMContextSetDiagnosticHandler(context, handler, None)
            module = self._c.LLVMModuleCreateWithNameInContext(b"text", context)
            try:
                self._c.LLVMSetTarget(module, TRIPLE.encode())
                self._c.LLVMSetModuleInlineAsm2(module, source, len(source))
                made, message = ctypes.c_void_p(), ctypes.c_void_p()
                failed = self._c.LLVMTargetMachineEmitToMemoryBuffer(
                    self._machine(processor, features), module, _OBJECT_FILE, ctypes.byref(message), ctypes.byref(made)
                )
                if failed:
                    complaints.append(ctypes.string_at(message.value or 0).decode("utf-8", "replace"))
                    self._c.LLVMDisposeMessage(message)
                    object_file = b""
                else:
                    size = self._c.LLVMGetBufferSize(made)
                    object_file = ctypes.string_at(self._c.LLVMGetBufferStart(made), size)
                    self._c.LLVMDisposeMemoryBuffer(made)
            finally:
                self._c.LLVMDisposeModule(module)
        if complaints:
            raise AssemblyError(tuple(_complaint(complaint, text) for complaint in complaints))
        return object_file

    def _description(self, diagnostic: int) -> str:
        """Return the text of one of LLVM's diagnostics."""
        text = self._c.LLVMGetDiagInfoDescription(diagnostic)
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            self._c.LLVMDisposeMessage(text)

    @contextmanager
    def _context(self) -> Iterator[int]:
        """Give an LLVM context, which owns modules and their diagnostics, for the block; it is freed afterwards."""
        context: int = self._c.LLVMContextCreate()
        try:
            yield context
        finally:
            self._c.LLVMContextDispose(context)

    def _disassembler(self, processor: str, features: str) -> int:
        """Return the disassembler for a processor. Raises ToolMissingError when there is none."""
        key = processor, features
        with self._lock:
            if key not in self._disassemblers:
                made = self._c.LLVMCreateDisasmCPUFeatures(
                    TRIPLE.encode(), processor.encode(), features.encode(), None, 0, None, None
                )
                if not made:
                    raise self._unknown(processor)
                self._disassemblers[key] = made
            return self._disassemblers[key]

    def _machine(self, processor: str, features: str) -> int:
        """Return the target machine for a processor. Raises ToolMissingError when there is none."""
        key = processor, features
        if key not in self._machines:
            if not self._target:
                target, message = ctypes.c_void_p(), ctypes.c_void_p()
                if self._c.LLVMGetTargetFromTriple(TRIPLE.encode(), ctypes.byref(target), ctypes.byref(message)):
                    raise ToolMissingError("AMD's LLVM", f"{self.path} has no target {TRIPLE}")
                self._target = target.value or 0
            made = self._c.LLVMCreateTargetMachine(
                self._target, TRIPLE.encode(), processor.encode(), features.encode(),
                _NOT_OPTIMIZED, _POSITION_INDEPENDENT, _DEFAULT_MODEL,
            )  # fmt: skip
            if not made:
                raise self._unknown(processor)
            self._machines[key] = made
        return self._machines[key]

    def _check(self, processor: str) -> None:
        """Raise ToolMissingError for a processor that it does not know."""
        if not self.knows(processor):
            raise self._unknown(processor)

    def _unknown(self, processor: str) -> ToolMissingError:
        """Return the error for a processor that this LLVM does not know."""
        return ToolMissingError("AMD's LLVM", f"{self.path} does not know {processor}")


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def _declare(library: Any) -> None:
    """Declare the functions that take or return more than an int. Raises AttributeError for one that is missing."""
    pointer, text, size, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
    for name, result, parameters in (
        ("LLVMGetVersion", None, [pointer, pointer, pointer]),
        ("LLVMCreateDisasmCPUFeatures", pointer, [text, text, text, pointer, number, pointer, pointer]),
        ("LLVMDisasmInstruction", size, [pointer, text, ctypes.c_uint64, ctypes.c_uint64, pointer, size]),
        ("LLVMGetTargetFromTriple", number, [text, pointer, pointer]),
        ("LLVMCreateTargetMachine", pointer, [pointer, text, text, text, number, number, number]),
        ("LLVMContextCreate", pointer, []),
        ("LLVMContextDispose", None, [pointer]),
        ("LLVMContextSetDiagnosticHandler", None, [pointer, _HANDLER, pointer]),
        ("LLVMGetDiagInfoDescription", pointer, [pointer]),
        ("LLVMDisposeMessage", None, [pointer]),
        ("LLVMModuleCreateWithNameInContext", pointer, [text, pointer]),
        ("LLVMDisposeModule", None, [pointer]),
        ("LLVMSetTarget", None, [pointer, text]),
        ("LLVMSetModuleInlineAsm2", None, [pointer, text, size]),
        ("LLVMTargetMachineEmitToMemoryBuffer", number, [pointer, pointer, number, pointer, pointer]),
        ("LLVMGetBufferStart", pointer, [pointer]),
        ("LLVMGetBufferSize", size, [pointer]),
        ("LLVMDisposeMemoryBuffer", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters


def _is_unprintable(code: bytes) -> bool:
    """Whether code begins with two words on which the disassembler crashes."""
    first, second = int.from_bytes(code[:WORD], "little"), int.from_bytes(code[WORD : 2 * WORD], "little")
    if first >> 26 == _VOP3:
        return _LITERAL in (second & 0x1FF, second >> 9 & 0x1FF, second >> 18 & 0x1FF)
    if first >> 26 in _BUFFERS:
        return second >> 24 == _LITERAL
    if first & 0x1FF != _SDWA or first >> 31:
        return False
    is_comparison = first >> 25 == _COMPARISON
    selections = [second >> 16 & 7, second >> 24 & 7, *([] if is_comparison else [second >> 8 & 7])]
    return _RESERVED_SELECTION in selections or (not is_comparison and second >> 11 & 3 == _RESERVED_UNUSED)


def _complaint(description: str, text: str) -> Complaint:
    """Return what a diagnostic says. description: ``<inline asm>:LINE:COLUMN: MESSAGE`` and lines that show the place,
    or any other text."""
    match = _DIAGNOSTIC.match(description.strip())
    if match is None:
        return Complaint(0, 0, description.strip() or "refused without a message", "")
    line, column, message = int(match[1]), int(match[2]), match[3]
    lines = text.splitlines()
    return Complaint(line, column, message, lines[line - 1] if 0 < line <= len(lines) else "")
