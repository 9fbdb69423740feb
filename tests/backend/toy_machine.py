"""Runs kernels of an invented assembly: warps of 64 lanes in lockstep, one block after another.

    .kernel NAME BYTES      a kernel, and the bytes of its parameters
      LABEL:                where a jump may go
      if P OPCODE …         an instruction for lanes in which P is not 0

``set d, a`` ``add|sub|mul|below|and d, a, b`` ``low|high d, a`` (half of it) ``param d, offset`` ``thread|lane|warp|
block|unit|time d`` ``lowest d`` (whether this is the lowest lane here) ``load d, address, offset`` ``store|store32|atom
address, offset, a`` ``jump condition, LABEL`` ``exit``. Registers are words, of 64 bits each; numbers stand for
themselves.
"""

from __future__ import annotations

import operator
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

LANES = 64
_WHOLE = (1 << 64) - 1
_TWO = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
    "below": lambda a, b: int(a < b),
}  # fmt: skip
Code = list[tuple[str, list[str]]]

@dataclass
class Machine:
    """memory: from address 0. executed: how often lanes have executed each opcode. spans: of each warp, by its number
    in the launch, the times of its first and last instruction, and its unit."""

    memory: bytearray
    time: int = 1000
    executed: Counter[str] = field(default_factory=Counter)
    spans: dict[int, list[int]] = field(default_factory=dict)

    def launch(self, text: str, kernel: str, blocks: int, threads: int, parameters: bytes) -> None:
        lines = [line.split(";")[0].strip() for line in text.splitlines()]
        start = next(at for at, line in enumerate(lines) if line.split()[:2] == [".kernel", kernel])
        code: Code = []
        labels: dict[str, int] = {}
        for line in takewhile(lambda line: not line.startswith(".kernel"), lines[start + 1 :]):
            if line.endswith(":"):
                labels[line[:-1]] = len(code)
            elif line:
                _, guard, line = line.split(maxsplit=2) if line.startswith("if ") else ("", "", line)
                opcode, _, operands = line.partition(" ")
                code.append((opcode, [guard, *(word.strip() for word in operands.split(",") if word)]))
        warps = -(-threads // LANES)
        for number in range(blocks * warps):
            here = range(number % warps * LANES, min(threads, (number % warps + 1) * LANES))
            lanes = [{"block": number // warps, "warp": number % warps, "thread": thread} for thread in here]
            self._run(code, labels, lanes, number, parameters)

    def _run(
        self, code: Code, labels: dict[str, int], lanes: list[dict[str, int]], number: int, parameters: bytes
    ) -> None:
        at = [0] * len(lanes)
        registers: list[dict[str, int]] = [{} for _ in lanes]
        unit = lanes[0]["block"] % 3
        self.spans[number] = [self.time, 0, unit]
        while any(place < len(code) for place in at):
            # The lanes that are furthest behind go first, so that all meet again.
            place = min(at)
            opcode, (guard, *words) = code[place]
            together = [lane for lane, other in enumerate(at) if other == place]
            executing = [lane for lane in together if not guard or registers[lane].get(guard, 0)]
            for lane in together:
                at[lane] = place + 1
            for lane in executing:
                own = lanes[lane] | {"lane": lane, "unit": unit, "time": self.time, "lowest": int(lane == executing[0])}
                values = [int(word) if word.lstrip("-").isdigit() else registers[lane].get(word, 0) for word in words]
                self.executed[opcode] += 1
                if opcode == "jump":
                    at[lane] = labels[words[1]] if values[0] else at[lane]
                elif opcode == "exit":
                    at[lane] = len(code)
                elif opcode.startswith("store"):
                    data = values[2].to_bytes(8, "little")[: 4 if opcode == "store32" else 8]
                    self.memory[values[0] + values[1] : values[0] + values[1] + len(data)] = data
                elif opcode == "atom":
                    (old,) = struct.unpack_from("<Q", self.memory, values[0] + values[1])
                    struct.pack_into("<Q", self.memory, values[0] + values[1], old + values[2] & _WHOLE)
                else:
                    registers[lane][words[0]] = self._value(opcode, values, own, parameters) & _WHOLE
            self.spans[number][1] = self.time
            self.time += 1

    def _value(self, opcode: str, values: list[int], own: dict[str, int], parameters: bytes) -> int:
        if opcode in own:
            return own[opcode]
        if opcode == "param":
            return int(struct.unpack_from("<Q", parameters, values[1])[0])
        if opcode == "load":
            return int(struct.unpack_from("<Q", self.memory, values[1] + values[2])[0])
        if opcode in ("low", "high"):
            return values[1] & 0xFFFFFFFF if opcode == "low" else values[1] >> 32
        return values[1] if opcode == "set" else int(_TWO[opcode](*values[1:]))
