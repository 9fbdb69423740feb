"""Runs kernels of an invented assembly: warps of 64 lanes in lockstep, one block after another.

    .kernel NAME BYTES      a kernel, and the bytes of its parameters
      LABEL:                where a jump may go
      if P OPCODE …         an instruction for lanes in which P is not 0

``set d, a`` ``add|sub|mul|below|and d, a, b`` ``low|high d, a`` (half of it) ``param d, offset`` ``thread|lane|warp|
blockx|blocky|gridx|unit|time d`` ``lowest d`` (whether this is the lowest lane here) ``load d, address, offset``
``store|store32|atom address, offset, a`` ``jump condition, LABEL`` ``exit``. Registers are words, of 64 bits each;
numbers stand for themselves. A unit is where a block runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

LANES = 64
UNITS = 3
_WHOLE = (1 << 64) - 1
_TWO: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "and": lambda a, b: a & b,
    "below": lambda a, b: int(a < b),
}  # fmt: skip
Code = list[tuple[str, str, list[str]]]
"""Opcode, guard ("" for none) and operands."""


def read(text: str, kernel: str) -> tuple[Code, dict[str, int]]:
    """Return a kernel's code, and where its labels are."""
    code: Code = []
    labels: dict[str, int] = {}
    lines = [line.split(";")[0].strip() for line in text.splitlines()]
    start = next(at for at, line in enumerate(lines) if line.split()[:2] == [".kernel", kernel])
    for line in takewhile(lambda line: not line.startswith(".kernel"), lines[start + 1 :]):
        guard, rest = line.split(maxsplit=2)[1:] if line.startswith("if ") else ("", line)
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        elif line:
            opcode, _, operands = rest.partition(" ")
            code.append((opcode, guard, [word.strip() for word in operands.split(",") if word]))
    return code, labels


@dataclass
class Machine:
    """memory: from address 0, and no further. spans: of each warp, by its number in the launch, when its first and its
    last instruction ran, and its unit."""

    memory: memoryview
    time: int = 1000
    spans: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def launch(self, text: str, kernel: str, grid: tuple[int, int], threads: int, parameters: bytes) -> None:
        code, labels = read(text, kernel)
        warps = -(-threads // LANES)
        for number in range(grid[0] * grid[1] * warps):
            block, warp = divmod(number, warps)
            words = {"blockx": block % grid[0], "blocky": block // grid[0], "gridx": grid[0], "warp": warp,
                     "unit": block % UNITS}  # fmt: skip
            here = range(warp * LANES, min(threads, (warp + 1) * LANES))
            begin = self.time
            self._run(code, labels, [{**words, "thread": one, "lane": one % LANES} for one in here], parameters)
            self.spans[number] = begin, self.time - 1, block % UNITS

    def _run(self, code: Code, labels: dict[str, int], lanes: list[dict[str, int]], parameters: bytes) -> None:
        at = [0] * len(lanes)
        registers: list[dict[str, int]] = [{} for _ in lanes]
        while (place := min(at)) < len(code):
            # The lanes that are furthest behind go first, so that all meet again.
            opcode, guard, words = code[place]
            together = [lane for lane, other in enumerate(at) if other == place]
            executing = [lane for lane in together if not guard or registers[lane].get(guard, 0)]
            for lane in together:
                at[lane] = place + 1
            for lane in executing:
                own = {**lanes[lane], "time": self.time, "lowest": int(lane == executing[0])}
                values = [int(word) if word.lstrip("-").isdigit() else registers[lane].get(word, 0) for word in words]
                if opcode == "jump":
                    at[lane] = labels[words[1]] if values[0] else at[lane]
                elif opcode == "exit":
                    at[lane] = len(code)
                elif opcode in ("store", "store32", "atom"):
                    where, size = values[0] + values[1], 4 if opcode == "store32" else 8
                    old = int.from_bytes(self.memory[where : where + size], "little") if opcode == "atom" else 0
                    self.memory[where : where + size] = ((old + values[2]) & _WHOLE).to_bytes(8, "little")[:size]
                else:
                    value = own[opcode] if opcode in own else self._value(opcode, values[1:], parameters)
                    registers[lane][words[0]] = value & _WHOLE
            self.time += 1

    def _value(self, opcode: str, values: list[int], parameters: bytes) -> int:
        if opcode in ("param", "load"):
            (word,) = struct.unpack_from("<Q", parameters if opcode == "param" else self.memory, sum(values))
            return int(word)
        if opcode in _TWO:
            return _TWO[opcode](*values)
        return {"set": values[0], "low": values[0] & 0xFFFFFFFF, "high": values[0] >> 32}[opcode]
