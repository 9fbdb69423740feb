"""What kernels do, by a second reading of PTX: thread by thread, in Python's numbers, without a probe.

It knows the instructions of kernels.ptx and refuses others, and shares no code with what reads, writes or runs PTX in
Neutrino. Of the lanes of a warp those go first that are furthest up in the text, and those that are at one instruction
execute it together. So lanes that have parted meet again where their ways join.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LANES = 32
Shape = tuple[int, int, int]
WINDOW = 1 << 48
"""Where a generic address is in shared memory."""
_STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)(?:\s+(.*?))?;")
_LABEL = re.compile(r"(\w+):")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_NAN: float = struct.unpack("<f", bytes.fromhex("ffffff7f"))[0]
"""The one that PTX's arithmetic gives."""
_AXES = {"x": 0, "y": 1, "z": 2}
_FORMATS = {"f32": "f", "u32": "I", "b32": "I", "u64": "Q", "u8": "B", "u16": "H", "f64": "d"}


@dataclass(frozen=True)
class Instruction:
    """line: in the text, from 1 on. text: the statement, without its semicolon. predicate: "" for none."""

    line: int
    text: str
    predicate: str
    negated: bool
    opcode: str
    operands: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")

    @property
    def place(self) -> str:
        """As results name it."""
        return f"PTX line {self.line}: {self.text}"

    @property
    def space(self) -> str:
        """The state space of an access, "generic" for one without, "" for no access; of a copy that of its source."""
        if self.parts[:2] == ["cp", "async"] and "global" in self.parts:
            return "global"
        if self.parts[0] not in ("ld", "st", "atom", "red"):
            return ""
        return next((part for part in self.parts if part in ("global", "shared", "param")), "generic")

    @property
    def size(self) -> int:
        """Bytes of the access of a lane; 0 if it is none."""
        if self.parts[0] == "cp":
            return int(self.operands[2]) if self.space else 0
        elements = next((int(part[1:]) for part in self.parts if part in ("v2", "v4")), 1)
        return elements * struct.calcsize(_FORMATS[self.parts[-1]]) if self.space else 0


@dataclass(frozen=True)
class Step:
    """What lanes of one warp do together. reaching: the lanes that are there, executing: those whose predicate holds.

    block: x fastest. addresses, inputs, outputs: by lane, of those that execute. first: whether the lanes are there for
    the first time in a basic block's run.
    """

    launch: int
    kernel: str
    block: int
    warp: int
    at: Instruction
    reaching: tuple[int, ...]
    executing: tuple[int, ...]
    addresses: Mapping[int, int]
    inputs: Mapping[int, tuple[Any, ...]]
    outputs: Mapping[int, tuple[Any, ...]]
    begins_block: bool

    def of(self, *words: str) -> bool:
        """Whether the opcode is the first word and has the others among its modifiers, in this order."""
        parts = iter(self.at.parts)
        return next(parts) == words[0] and all(word in parts for word in words[1:])

    def thread(self, lane: int) -> int:
        """Of a lane the number in its block."""
        return self.warp * LANES + lane


@dataclass(frozen=True)
class Launch:
    """arguments: by parameter, of a pointer the name of its array."""

    kernel: str
    grid: Shape
    block: Shape
    arguments: Mapping[str, int | float | str]

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)


@dataclass
class Text:
    """One kernel's text."""

    name: str
    parameters: dict[str, str]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_size: int = 0

    def begins_block(self, index: int) -> bool:
        """Whether a basic block begins at this instruction."""
        targets = {self.labels[one.operands[0]] for one in self.instructions if one.parts[0] == "bra"}
        return index == 0 or index in targets or self.instructions[index - 1].parts[0] in ("bra", "ret", "exit")


def read(text: str) -> dict[str, Text]:
    """The kernels of a text, each statement in a line of its own."""
    kernels: dict[str, Text] = {}
    current: Text | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("//")[0].strip()
        if match := re.match(r"\.visible \.entry (\w+)\(", words):
            current = kernels[match[1]] = Text(match[1], {})
        elif current is None or not words or words in "(){}" or words.startswith((".reg", ".pragma")):
            continue
        elif match := re.match(r"\.param \.(\w+) (\w+)", words):
            current.parameters[match[2]] = match[1]
        elif match := re.match(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]", words):
            align = int(match[1])
            current.shared[match[2]] = -(-current.shared_size // align) * align
            current.shared_size = current.shared[match[2]] + int(match[3])
        elif match := _LABEL.fullmatch(words):
            current.labels[match[1]] = len(current.instructions)
        elif match := _STATEMENT.fullmatch(words):
            operands = tuple(_OPERAND.findall(match[4] or ""))
            one = Instruction(number, words[:-1], match[2] or "", match[1] == "!", match[3], operands)
            current.instructions.append(one)
        else:
            raise ValueError(f"line {number}: {words}")
    return kernels


class Memory:
    """arrays: name → (address, bytes)."""

    def __init__(self, arrays: Mapping[str, tuple[int, bytearray]], shared_size: int) -> None:
        self._arrays = list(arrays.values())
        self._shared = bytearray(b"\xa5" * max(shared_size, 1))

    def _at(self, space: str, address: int, size: int) -> tuple[bytearray, int]:
        if space == "shared" or (space == "generic" and address >= WINDOW):
            place, content = address % WINDOW, self._shared
        else:
            place, content = next(
                (address - base, array) for base, array in self._arrays if 0 <= address - base < len(array)
            )
        assert place % size == 0
        assert place + size <= len(content)
        return content, place

    def load(self, space: str, address: int, kind: str, elements: int) -> tuple[Any, ...]:
        size = struct.calcsize(_FORMATS[kind]) * elements
        content, place = self._at(space, address, size)
        return struct.unpack_from(f"<{elements}{_FORMATS[kind]}", content, place)

    def store(self, space: str, address: int, kind: str, values: Sequence[Any]) -> None:
        size = struct.calcsize(_FORMATS[kind]) * len(values)
        content, place = self._at(space, address, size)
        struct.pack_into(f"<{len(values)}{_FORMATS[kind]}", content, place, *values)


def _single(value: float) -> float:
    return _NAN if math.isnan(value) else float(struct.unpack("<f", struct.pack("<f", value))[0])


def _square_root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else _NAN


def _integer(value: float) -> int:
    """cvt.rzi.u32.f32"""
    return 0 if math.isnan(value) else int(min(max(value, 0), (1 << 32) - 1))


_COMPUTED: dict[str, Callable[..., Any]] = {
    "mov": lambda a: a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c, "fma": lambda a, b, c: a * b + c, "rem": lambda a, b: a % b,
    "and": lambda a, b: a & b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "sqrt": _square_root,
    "max": lambda a, b: b if math.isnan(a) else a if math.isnan(b) else max(a, b),
    "cvta": lambda a: a,
}  # fmt: skip
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "ge": lambda a, b: a >= b, "gt": lambda a, b: a > b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}  # fmt: skip


class _Block:
    """One block of a launch."""

    def __init__(
        self, number: int, launch_number: int, launch: Launch, text: Text, arrays: Mapping[str, tuple[int, bytearray]]
    ) -> None:
        self._number = number
        self._launch_number = launch_number
        self._launch = launch
        self._text = text
        self._arrays = arrays
        self._memory = Memory(arrays, text.shared_size)
        self._registers: list[dict[str, Any]] = [{} for _ in range(launch.threads)]
        self._at = dict.fromkeys(range(launch.threads), 0)
        self._waiting: set[int] = set()

    def run(self) -> Iterator[Step]:
        threads = self._launch.threads
        warps = [range(first, min(first + LANES, threads)) for first in range(0, threads, LANES)]
        while self._at:
            for warp in warps:
                while group := self._next(warp):
                    yield self._step(warp, group)
            # All that are left are at a barrier, the same one in these kernels.
            assert self._waiting == self._at.keys()
            assert len(set(self._at.values())) <= 1
            for thread in self._waiting:
                self._at[thread] += 1
            self._waiting.clear()

    def _next(self, warp: range) -> list[int]:
        ready = [thread for thread in warp if thread in self._at and thread not in self._waiting]
        first = min((self._at[thread] for thread in ready), default=0)
        return [thread for thread in ready if self._at[thread] == first]

    def _step(self, warp: range, group: list[int]) -> Step:
        index = self._at[group[0]]
        one = self._text.instructions[index]
        executing = [
            thread for thread in group
            if not one.predicate or bool(self._registers[thread][one.predicate]) != one.negated
        ]  # fmt: skip
        addresses: dict[int, int] = {}
        inputs: dict[int, tuple[Any, ...]] = {}
        outputs: dict[int, tuple[Any, ...]] = {}
        for thread in group:
            self._at[thread] += 1
        for thread in executing:
            lane = thread - warp.start
            addresses[lane], inputs[lane], outputs[lane] = self._execute(one, thread)
        lanes = tuple(thread - warp.start for thread in group)
        return Step(
            self._launch_number, self._launch.kernel, self._number, warp.start // LANES, one, lanes,
            tuple(thread - warp.start for thread in executing), addresses if one.space not in ("", "param") else {},
            inputs, outputs, self._text.begins_block(index),
        )  # fmt: skip

    def _execute(self, one: Instruction, thread: int) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
        """Execute for one thread. Returns its address, or 0, its inputs and its outputs."""
        family, *modifiers = one.parts
        kind = one.parts[-1]
        registers = self._registers[thread]
        if family == "bra":
            self._at[thread] = self._text.labels[one.operands[0]]
        elif family in ("ret", "exit"):
            del self._at[thread]
        elif family == "bar":
            self._at[thread] -= 1
            self._waiting.add(thread)
        elif family == "mma":
            # Of zeros: nothing is added to the last factor.
            values = self._values(thread, one.operands[3], kind)
            self._assign(thread, one.operands[0], values)
        elif family == "cp":
            # Copied at once: the kernels wait before they read.
            if one.space:
                target, source = (self._address(thread, operand) for operand in one.operands[:2])
                self._memory.store("shared", target, "u8", self._memory.load("global", source, "u8", one.size))
                return source, (target, source), ()
        elif family in ("ld", "st", "atom", "red"):
            return self._access(one, thread)
        else:
            sources = [self._value(thread, name, kind) for name in one.operands[1:]]
            if family == "setp":
                value: Any = _COMPARED[modifiers[0]](*sources)
            elif family == "cvt":
                value = _integer(sources[0]) if modifiers[0] == "rzi" else sources[0]
            elif "to" in modifiers or family == "cvta":
                value = sources[0] + (WINDOW if "shared" in modifiers else 0)
            else:
                value = _COMPUTED[family](*sources)
                if kind == "f32":
                    value = _single(value)
                elif kind != "pred":
                    value %= 1 << (64 if kind.endswith("64") or "wide" in modifiers else 32)
            registers[one.operands[0]] = value
            return 0, tuple(sources), (value,)
        return 0, (), ()

    def _access(self, one: Instruction, thread: int) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
        family, kind = one.parts[0], one.parts[-1]
        position = 0 if family in ("st", "red") else 1
        if one.space == "param":
            value = self._launch.arguments[one.operands[position].strip("[]")]
            found = self._arrays[value][0] if isinstance(value, str) else value
            self._registers[thread][one.operands[0]] = found
            return 0, (), (found,)
        address = self._address(thread, one.operands[position])
        if family == "st":
            values = self._values(thread, one.operands[1], kind)
            self._memory.store(one.space, address, kind, values)
            return address, (address, *values), ()
        elements = one.operands[0].strip("{}").split(",")
        if family == "ld":
            loaded = self._memory.load(one.space, address, kind, len(elements))
            self._assign(thread, one.operands[0], loaded)
            return address, (address,), loaded
        assert "add" in one.parts
        added = self._value(thread, one.operands[position + 1], kind)
        (old,) = self._memory.load(one.space, address, kind, 1)
        new = _single(old + added) if kind == "f32" else (old + added) % (1 << 32)
        self._memory.store(one.space, address, kind, (new,))
        if family == "atom":
            self._assign(thread, one.operands[0], (old,))
        return address, (address, added), (old,)

    def _address(self, thread: int, operand: str) -> int:
        name, _, offset = operand.strip("[]").partition("+")
        return int(self._value(thread, name, "u64")) + int(offset or 0)

    def _assign(self, thread: int, operand: str, values: Sequence[Any]) -> None:
        names = [name.strip() for name in operand.strip("{}").split(",")]
        self._registers[thread].update(zip(names, values, strict=True))

    def _values(self, thread: int, operand: str, kind: str) -> tuple[Any, ...]:
        return tuple(self._value(thread, name.strip(), kind) for name in operand.strip("{}").split(","))

    def _value(self, thread: int, name: str, kind: str) -> Any:
        if name.startswith("0f"):
            return struct.unpack(">f", bytes.fromhex(name[2:]))[0]
        if name.isdigit():
            return int(name)
        if name in self._text.shared:
            return self._text.shared[name]
        if match := re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.([xyz])", name):
            block, grid = self._launch.block, self._launch.grid
            axis = _AXES[match[2]]
            return {
                "tid": _place(thread, block)[axis], "ntid": block[axis], "ctaid": _place(self._number, grid)[axis],
                "nctaid": grid[axis],
            }[match[1]]  # fmt: skip
        return self._registers[thread][name]


def _place(number: int, shape: Shape) -> Shape:
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def run(
    texts: Mapping[str, Text], launches: Sequence[Launch], arrays: Mapping[str, tuple[int, bytearray]]
) -> list[Step]:
    """What these launches do, one after the other. arrays: name → (address, content), which they change."""
    return [
        step
        for number, launch in enumerate(launches)
        for block in range(launch.blocks)
        for step in _Block(block, number, launch, texts[launch.kernel], arrays).run()
    ]
