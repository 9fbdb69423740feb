"""LLVM's hazard recognizer as the judge of code that no compiler has made.

Some pairs of instructions need wait states between them that neither the hardware nor an assembler provides. LLVM's
pass ``post-RA-hazard-rec`` inserts them into compiled code. Here it gets sequences of instructions as machine IR (MIR):
what it inserts, they lack. The text becomes MIR by way of ``llvm-mc -show-inst``, which names opcode and operands as
LLVM's tables have them. Of an opcode's implicit operands, which MIR must have, only errors of ``llc`` tell, one at a
time: ``hazard_operands.json`` has what they told. With HAZARD_OPERANDS in the environment, what is learnt is added.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ASSEMBLER, COMPILER = "llvm-mc-19", "llc-19"
_LEARNT = Path(__file__).with_name("hazard_operands.json")
_TRIPLE = "amdgcn-amd-amdhsa"
_WAVE64 = "+wavefrontsize64,-wavefrontsize32"
_INSTRUCTION = re.compile(r"<MCInst #\d+ (\w+)((?:\s*;?\s*<MCOperand [^>]+>)*)>", re.DOTALL)
_OPERAND = re.compile(r"<MCOperand (Reg|Imm|DFPImm|SFPImm):(-?[\w.]+)")
_GENERATION = re.compile(r"_(?:vi|si|ci|(?:gfx\d+[0-9a-f]*|vi|si|ci)(?:_(?:gfx\d+[0-9a-f]*|vi))*)$")
_REGISTER = re.compile(
    r"\b(?:[sva](?:\d+|\[\d+:\d+\])|vcc(?:_lo|_hi)?|exec(?:_lo|_hi)?|m0|null|ttmp\d+|src_\w+_base)(?!\w)"
)
_MISSING = re.compile(r":(\d+):\d+: missing implicit register operand '([^']+)'")
_UNKNOWN_NAME = re.compile(r"unknown machine instruction name '(\w+)'")
_UNKNOWN = re.compile(r":(\d+):\d+: (.*)")
_WIDTHS = {"B32": "DWORD", "B64": "DWORDX2", "B96": "DWORDX3", "B128": "DWORDX4", "B256": "DWORDX8", "B512": "DWORDX16"}
_NARROW = {"U8": "UBYTE", "I8": "SBYTE", "U16": "USHORT", "I16": "SSHORT", "B8": "BYTE", "B16": "SHORT"}
_NO_RESULT = re.compile(
    r"(GLOBAL|FLAT|BUFFER|SCRATCH|DS)_(STORE|WRITE)|S_(STORE|CMP|BITCMP|NOP|WAIT|SETREG|BARRIER|SENDMSG$|SLEEP|SETPC|CLAUSE|DELAY"
    r"|ENDPGM|DCACHE|TRAP|SETPRIO|ICACHE)|V_CMP_\w+_(e32|sdwa|dpp)$|V_CMPX\w+(_e32$|_nosdst)|V_NOP|(GLOBAL|FLAT|BUFFER)_ATOMIC(?!.*_RTN)|DS_(ADD|OR|MAX|MIN)_[UB]\d+$"
)
_TWO_RESULTS = re.compile(r"V_(ADD_CO|SUB_CO|SUBREV_CO|ADDC|SUBB|SUBBREV)_U32_e64|V_MAD_[UI]64_[UI]32|V_DIV_SCALE")


class HazardJudge:
    """Judges code for one processor. wave: lanes of its waves."""

    def __init__(self, processor: str, wave: int = 64) -> None:
        for tool in (ASSEMBLER, COMPILER):
            if shutil.which(tool) is None:
                pytest.skip(f"there is no {tool}, LLVM's judge of wait states")
        self._processor = processor
        wide = wave == 64 and not processor.startswith("gfx9")
        self._options = [f"-mcpu={processor}", *([f"-mattr={_WAVE64}"] if wide else [])]
        self._numbers: dict[str, str] = {}
        """Names of registers in MIR by LLVM's numbers of them."""
        self._named: set[str] = set()
        self._place = f"{processor}, {wave} lanes"
        learnt = json.loads(_LEARNT.read_text()).get(self._place, {}) if _LEARNT.exists() else {}
        self._implicit = {opcode: text.split(", ") for opcode, text in learnt.get("implicit", {}).items()}
        """By opcode, the implicit operands that MIR must have."""
        self._renamed: dict[str, str] = learnt.get("renamed", {})
        """What an opcode is known as to LLVM's passes, of those that they have another name for."""

    def added(self, sequences: Sequence[Sequence[str]]) -> list[list[tuple[int, str]]]:
        """Return what LLVM inserts into each sequence of instructions: before which of them, and what, as MIR.

        Sequences have no branches. Each is judged alone, as after long waits.
        """
        # Each text once: the assembler is a process.
        lines = list(dict.fromkeys(line for sequence in sequences for line in sequence))
        self._learn(lines)
        rows = dict(zip(lines, self._as_mir(lines), strict=True))
        parts = [[self._rename(*rows[line]) for line in sequence] for sequence in sequences]
        tried: set[str] = set()
        while True:
            mir, owners = self._module(parts)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "judged.mir"
                path.write_text(mir)
                command = [
                    COMPILER,
                    "-march=amdgcn",
                    *self._options,
                    "-run-pass=post-RA-hazard-rec",
                    "-o",
                    "-",
                    str(path),
                ]
                finished = subprocess.run(command, capture_output=True, text=True, check=False)
            if finished.returncode == 0:
                self._keep()
                return self._found(finished.stdout, parts)
            unknown = _UNKNOWN_NAME.search(finished.stderr)
            if unknown is not None and unknown[1] not in tried:
                # What has one encoding is named without it, but for some that once had two.
                tried.add(unknown[1])
                plain = unknown[1].removesuffix("_e64")
                known_as = plain if plain != unknown[1] else f"{plain}_e64"
                tried.add(known_as)
                self._renamed[unknown[1]] = known_as
                parts = [[self._rename(opcode, text) for opcode, text in rows] for rows in parts]
                continue
            missing = _MISSING.search(finished.stderr)
            assert missing is not None, _explained(finished.stderr, mir)
            opcode = owners[int(missing[1])]
            known = self._implicit.setdefault(opcode, [])
            assert missing[2] not in known, finished.stderr
            known.append(missing[2])

    def _rename(self, opcode: str, text: str) -> tuple[str, str]:
        """Return opcode and MIR as LLVM's passes know them, as far as that was learnt."""
        known_as = self._renamed.get(opcode, opcode)
        return known_as, text.replace(opcode, known_as) if known_as != opcode else text

    def _keep(self) -> None:
        """Add what was learnt to the file, if that is wanted."""
        if "HAZARD_OPERANDS" not in os.environ:
            return
        everything = json.loads(_LEARNT.read_text()) if _LEARNT.exists() else {}
        place = everything.setdefault(self._place, {"renamed": {}, "implicit": {}})
        place["renamed"].update(self._renamed)
        place["implicit"].update((opcode, ", ".join(operands)) for opcode, operands in self._implicit.items())
        _LEARNT.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n")

    def _as_mir(self, sequence: Sequence[str]) -> list[tuple[str, str]]:
        """Return opcode and MIR, without implicit operands, of each instruction."""
        found = self._encoded(sequence)
        assert len(found) == len(sequence), (sequence, found)
        rows = []
        for opcode, operands in found:
            if opcode.startswith("V_CMPX_") and not self._processor.startswith("gfx9"):
                # It writes EXEC alone.
                opcode = opcode.replace("_e", "_nosdst_e") if "nosdst" not in opcode else opcode
            words = [self._numbers[number] if kind == "Reg" else number for kind, number in operands]
            if opcode.endswith("_dpp") and not self._processor.startswith("gfx9"):
                # "fi" is an operand of the encoding alone.
                del words[-1]
            results = 0 if _NO_RESULT.match(opcode) else 2 if _TWO_RESULTS.match(opcode) else 1
            left, right = ", ".join(words[:results]), ", ".join(words[results:])
            rows.append((opcode, f"{left} = {opcode} {right}".strip() if left else f"{opcode} {right}".strip()))
        return rows

    def _learn(self, sequence: Sequence[str]) -> None:
        """Find LLVM's numbers of the registers that are named, from instructions whose first operand they are."""
        new = sorted({word for text in sequence for word in _REGISTER.findall(text)} - self._named)
        if not new:
            return
        numbers = [operands[0][1] for _, operands in self._encoded([_naming(word) for word in new])]
        for word, number in zip(new, numbers, strict=True):
            self._numbers[number] = _mir_name(word)
        self._numbers.setdefault("0", "$noreg")
        self._named.update(new)

    def _encoded(self, sequence: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return opcode and operands of each instruction, as LLVM's tables have them."""
        command = [ASSEMBLER, f"-triple={_TRIPLE}", *self._options, "-show-inst"]
        finished = subprocess.run(
            command, input="\n".join(sequence) + "\n", capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stderr
        text = finished.stdout.replace("\n", " ")
        return [(_pseudo(name), _OPERAND.findall(operands)) for name, operands in _INSTRUCTION.findall(text)]

    def _module(self, parts: Sequence[Sequence[tuple[str, str]]]) -> tuple[str, dict[int, str]]:
        """Return the MIR of all sequences, and by line the opcode there."""
        lines = ["--- |"]
        lines += [f"  define amdgpu_kernel void @k{number}() {{ ret void }}" for number in range(len(parts))]
        lines.append("...")
        owners: dict[int, str] = {}
        for number, rows in enumerate(parts):
            lines += ["---", f"name: k{number}", "tracksRegLiveness: false", "body: |", "  bb.0:"]
            for opcode, text in rows:
                implicit = ", ".join(self._implicit.get(opcode, ()))
                has_operands = (" = " in text and not text.endswith(opcode)) or text.startswith(opcode + " ")
                lines.append(f"    {text}{', ' if implicit and has_operands else ' ' if implicit else ''}{implicit}")
                owners[len(lines)] = opcode
            lines += ["    S_ENDPGM 0", "..."]
        return "\n".join(lines) + "\n", owners

    def _found(self, output: str, parts: Sequence[Sequence[tuple[str, str]]]) -> list[list[tuple[int, str]]]:
        """Return what the output has more than the sequences."""
        bodies = re.findall(r"^  bb\.0:\n(.*?)^\.\.\.$", output, re.MULTILINE | re.DOTALL)
        assert len(bodies) == len(parts)
        found = []
        for body, rows in zip(bodies, parts, strict=True):
            expected = [opcode for opcode, _ in rows]
            added: list[tuple[int, str]] = []
            at = 0
            for line in filter(None, map(str.strip, body.splitlines())):
                if line.startswith(("successors", "liveins", "S_ENDPGM", "; predecessors")):
                    continue
                own = [word for word in re.split(r"[^\w]+", line.rpartition(" = ")[2]) if word]
                if at < len(expected) and own and own[0] == expected[at] and not _is_extra(line, rows[at][1]):
                    at += 1
                else:
                    added.append((at, line))
            assert at == len(expected), body
            found.append(added)
        return found


def _is_extra(line: str, own: str) -> bool:
    """Whether an S_NOP is another one than ours."""
    return line.startswith("S_NOP") and line.split()[:2] != own.split()[:2]


def _naming(register: str) -> str:
    """Return an instruction whose first operand is a register, or a range of them."""
    match = re.fullmatch(r"([sva])\[(\d+):(\d+)\]", register)
    if match is None:
        if register[0] in "va" and register[1:].isdigit():
            return f"v_mov_b32 {register}, 0" if register[0] == "v" else f"v_accvgpr_write_b32 {register}, 0"
        if register in ("vcc", "exec") or register.startswith("src_"):
            return f"s_mov_b64 {register}, 0" if not register.startswith("src_") else f"s_cmp_eq_u64 {register}, 0"
        return f"s_mov_b32 {register}, 0"
    width = int(match[3]) - int(match[2]) + 1
    if width > 4 and match[1] == "v":
        # As LLVM's names of matrix products were until gfx90a, and are aliases since.
        name = {8: "v_mfma_f64_16x16x4f64", 16: "v_mfma_f32_32x32x8f16"}[width]
        return f"{name} {register}, v[0:1], v[0:1], {register}"
    if match[1] == "s":
        return f"s_mov_b64 {register}, 0" if width == 2 else f"s_load_dwordx{width} {register}, s[0:1], 0x0"
    return f"global_load_dwordx{width} {register}, v[0:1], off"


def _mir_name(register: str) -> str:
    """Return MIR's name of a register: ``$sgpr2_sgpr3`` of ``s[2:3]``."""
    match = re.fullmatch(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])", register)
    if match is None:
        return {"null": "$sgpr_null"}.get(register, f"${register}")
    letter = {"s": "sgpr", "v": "vgpr", "a": "agpr"}[match[1]]
    first, last = (int(match[2]),) * 2 if match[2] else (int(match[3]), int(match[4]))
    return "$" + "_".join(f"{letter}{number}" for number in range(first, last + 1))


def _pseudo(opcode: str) -> str:
    """Return the opcode that passes see of one that has a generation's encoding: gfx11 renamed many."""
    kind, *parts = _GENERATION.sub("", opcode).split("_")
    first = parts[:1]
    if kind in ("GLOBAL", "FLAT", "BUFFER", "SCRATCH") and first in (["LOAD"], ["STORE"]) and len(parts) > 1:
        parts[1] = {**_WIDTHS, **_NARROW}.get(parts[1], parts[1])
    elif kind == "S" and first == ["LOAD"]:
        parts[1] = _WIDTHS.get(parts[1], parts[1])
    elif kind == "DS" and first in (["LOAD"], ["STORE"]):
        parts[0] = {"LOAD": "READ", "STORE": "WRITE"}[parts[0]]
    elif kind == "GLOBAL" and first == ["ATOMIC"] and re.fullmatch(r"[UIB](32|64)", "".join(parts[2:3])):
        width = parts.pop(2)
        if parts[1] in ("MIN", "MAX"):
            parts[1] = ("S" if width[0] == "I" else "U") + parts[1]
        parts[2:2] = ["X2"] if width.endswith("64") else []
    elif kind == "V" and parts[1:2] == ["NC"]:
        del parts[1]
    elif parts[1:3] == ["CO", "CI"]:
        parts[:3] = [{"ADD": "ADDC", "SUB": "SUBB"}[parts[0]]]
    elif parts[1:2] == ["CO"] and (kind == "S" or first[0] in ("ADDC", "SUBB", "SUBBREV")):
        del parts[1]
    return "_".join([kind, *parts])


def _explained(errors: str, mir: str) -> str:
    """Return an error of the compiler with the line that it is about."""
    match = _UNKNOWN.search(errors)
    line = mir.splitlines()[int(match[1]) - 1] if match is not None else ""
    return f"{errors}\n{line}"
