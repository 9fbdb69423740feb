"""One-instruction changes of a kernel, by kind of mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_STATEMENT = re.compile(r"(?P<guard>@!?%\w+\s+)?(?P<opcode>[a-z]\w*(?:\.[\w:]+)*)\s*(?P<operands>[^;]*)\Z", re.DOTALL)
_DECIMAL = re.compile(r"-?\d+\Z")

_OPPOSITE = {
    "add": "sub", "sub": "add", "min": "max", "max": "min", "and": "or", "or": "and", "xor": "or", "shl": "shr",
    "div": "mul", "rem": "div", "not": "mov", "neg": "mov", "abs": "mov", "popc": "clz", "clz": "popc",
    "ex2": "lg2", "sqrt": "rsqrt", "sin": "cos", "cos": "sin", "rcp": "sqrt",
}  # fmt: skip
_COMPARED = {
    "lt": ("ge", "le"), "le": ("gt", "lt"), "gt": ("le", "ge"), "ge": ("lt", "gt"), "eq": ("ne",), "ne": ("eq",),
}  # fmt: skip
_MODIFIER = {
    "lo": "hi", "hi": "lo", "down": "up", "up": "down", "bfly": "up", "idx": "bfly", "any": "all", "all": "any",
    "row": "col", "trans": "", "wide": "lo",
}  # fmt: skip
_ATOMIC = {"add": "max", "max": "min", "min": "max", "and": "or", "or": "and", "xor": "or", "inc": "dec", "dec": "inc",
           "exch": "add"}  # fmt: skip
_ROUNDING = {"rn": "rz", "rz": "rn", "rm": "rp", "rp": "rm", "rni": "rzi", "rzi": "rni", "rmi": "rpi", "rpi": "rmi"}
_SPECIAL = {
    "%tid.x": "%ctaid.x", "%ctaid.x": "%tid.x", "%ntid.x": "%nctaid.x", "%tid.y": "%tid.x", "%ctaid.y": "%ctaid.x",
    "%ntid.y": "%ntid.x", "%tid.z": "%tid.y", "%ctaid.z": "%ctaid.y", "%laneid": "%tid.y", "%nctaid.x": "%ntid.x",
    "%ntid.z": "%ntid.y", "%nctaid.y": "%nctaid.x",
}  # fmt: skip
_SIGNED = re.compile(r"\b([su])(8|16|32|64)\b")
_SIGN_MATTERS = frozenset({"setp", "shr", "min", "max", "div", "rem", "cvt", "abs", "ld"})
_MINUS = frozenset({"sub", "div", "rem", "shl", "shr", "selp"})


@dataclass(frozen=True)
class Statement:
    """A statement as it stands in a kernel: guard with its blank, opcode, operands as one text."""

    guard: str
    opcode: str
    operands: str

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")

    @property
    def text(self) -> str:
        return f"{self.guard}{self.opcode} {self.operands}".rstrip()

    def with_opcode(self, opcode: str) -> str:
        return Statement(self.guard, opcode, self.operands).text

    def with_operands(self, operands: str) -> str:
        return Statement(self.guard, self.opcode, operands).text


def read(text: str) -> Statement | None:
    """A statement's text taken apart, without its semicolon."""
    found = _STATEMENT.match(text.strip())
    if found is None:
        return None
    return Statement(found["guard"] or "", found["opcode"], " ".join(found["operands"].split()))


def _split(operands: str) -> list[str]:
    pieces, depth = [""], 0
    for letter in operands:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces]


def _opposites(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    other = _OPPOSITE.get(parts[0])
    if parts[-1] == "pred" and other == "mov":
        return
    if other == "mov":
        kind = re.sub(r"^[su]", "b", parts[-1])
        yield statement.with_opcode(f"mov.{kind if kind not in {'f16', 'bf16', 'f16x2'} else 'b' + _width(kind)}")
    elif parts[0] == "shl":
        yield statement.with_opcode(f"shr.{parts[1].replace('b', 'u')}")
    elif parts[0] == "shr":
        yield statement.with_opcode(f"shl.{re.sub('[su]', 'b', parts[1])}")
    elif parts[0] == "div":
        yield statement.with_opcode("mul." + ".".join(["lo"] * (parts[-1][0] in "su") + _plain_rounding(parts[1:])))
    elif other in {"lg2", "rsqrt", "sqrt", "ex2", "sin", "cos"}:
        if "approx" in parts and parts[-1] == "f32":
            yield statement.with_opcode(".".join([other, *parts[1:]]))
    elif other:
        yield statement.with_opcode(".".join([other, *parts[1:]]))
    elif parts[0] == "mul" and "wide" not in parts:
        yield statement.with_opcode(".".join(["add", *(part for part in parts[1:] if part not in {"lo", "hi"})]))
    elif parts[0] in {"fma", "mad"}:
        pieces = _split(statement.operands)
        if len(pieces) == 4 and "wide" not in parts:
            yield statement.with_operands(", ".join([pieces[0], pieces[1], pieces[3], pieces[2]]))


def _plain_rounding(parts: list[str]) -> list[str]:
    return ["rn" if part in {"approx", "full"} else part for part in parts]


def _width(kind: str) -> str:
    return "32" if kind.endswith("x2") else "16"


def _comparisons(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    if parts[0] in {"setp", "set"}:
        for other in _COMPARED.get(parts[1], ()):
            yield statement.with_opcode(".".join([parts[0], other, *parts[2:]]))


def _modifiers(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    if parts[0] in {"mul", "mad", "shfl", "vote", "ldmatrix"}:
        for at, part in enumerate(parts[1:], 1):
            other = _MODIFIER.get(part)
            if other is not None and part not in {"wide", "row"}:
                yield statement.with_opcode(".".join([*parts[:at], *([other] if other else []), *parts[at + 1 :]]))


def _atomics(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    if parts[0] in {"atom", "red"} and "f32" not in parts and "f64" not in parts:
        for at, part in enumerate(parts):
            other = _ATOMIC.get(part)
            if other:
                kind = "u32" if other in {"inc", "dec"} else parts[-1]
                changed = [*parts[:at], other, *parts[at + 1 : -1], _atomic_type(other, kind)]
                yield statement.with_opcode(".".join(changed))


def _atomic_type(operation: str, kind: str) -> str:
    wanted = "b" if operation in {"and", "or", "xor", "exch"} else "u"
    return wanted + kind[1:]


def _roundings(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    for at, part in enumerate(parts[1:], 1):
        if part in _ROUNDING and "approx" not in parts:
            yield statement.with_opcode(".".join([*parts[:at], _ROUNDING[part], *parts[at + 1 :]]))
            return


def _signs(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    last = _SIGNED.fullmatch(parts[-1])
    if last is None or parts[0] not in _SIGN_MATTERS:
        return
    widens = parts[0] == "cvt" and all(map(_SIGNED.fullmatch, parts[-2:])) and int(parts[-2][1:]) > int(last[2])
    loads = parts[0] == "ld" and int(last[2]) < 32
    equality = parts[0] == "setp" and parts[1] in {"eq", "ne"}
    if widens or loads or (parts[0] not in {"cvt", "ld"} and not equality):
        turned = ("u" if last[1] == "s" else "s") + last[2]
        yield statement.with_opcode(".".join([*parts[:-1], turned]))


def _guards(statement: Statement) -> Iterator[str]:
    if statement.guard:
        turned = statement.guard.replace("@!", "@") if "!" in statement.guard else statement.guard.replace("@", "@!")
        yield Statement(turned, statement.opcode, statement.operands).text
        if statement.parts[0] not in {"bra", "ret", "exit"}:
            yield Statement("", statement.opcode, statement.operands).text


def _dropped(statement: Statement) -> Iterator[str]:
    if statement.parts[0] in {"st", "red", "bar", "barrier", "membar", "fence"} and "param" not in statement.parts:
        yield ""
    if statement.parts[0] in {"cp", "mbarrier"}:
        yield ""


def _loads(statement: Statement) -> Iterator[str]:
    """What is loaded is another element, or nothing."""
    parts = statement.parts
    if parts[0] != "ld" or "param" in parts:
        return
    step = int(re.sub(r"\D", "", parts[-1])) // 8
    moved = re.sub(
        r"\[([^\]+]+)(?:\+(-?\d+))?\]", lambda found: f"[{found[1]}+{int(found[2] or 0) + step}]", statement.operands
    )
    if not any(part in {"v2", "v4"} for part in parts):
        yield statement.with_operands(moved)


def _immediates(statement: Statement) -> Iterator[str]:
    parts = statement.parts
    if parts[0] in {"bar", "barrier", "bra", "call", "ld", "st", "cp", "prefetch", "lop3", "cvta"} or "shfl" in parts:
        return
    pieces = _split(statement.operands)
    for at, piece in enumerate(pieces):
        if at and _DECIMAL.match(piece):
            yield statement.with_operands(", ".join([*pieces[:at], str(int(piece) + 1), *pieces[at + 1 :]]))


def _swapped(statement: Statement) -> Iterator[str]:
    if statement.parts[0] not in _MINUS:
        return
    pieces = _split(statement.operands)
    if len(pieces) >= 3 and pieces[1] != pieces[2]:
        yield statement.with_operands(", ".join([pieces[0], pieces[2], pieces[1], *pieces[3:]]))


def _special_registers(statement: Statement) -> Iterator[str]:
    if statement.parts[0] == "mov":
        for name, other in _SPECIAL.items():
            if statement.operands.endswith(f" {name}"):
                yield statement.with_operands(statement.operands.replace(name, other))


def _shuffled(statement: Statement) -> Iterator[str]:
    """Another distance: half of it, since one that only mixes in others leaves a butterfly what it was."""
    if statement.parts[0] != "shfl":
        return
    pieces = _split(statement.operands)
    if _DECIMAL.match(pieces[2]):
        yield statement.with_operands(", ".join([*pieces[:2], str(int(pieces[2]) // 2 or 2), *pieces[3:]]))


MUTATIONS: dict[str, Callable[[Statement], Iterator[str]]] = {
    "opcode": _opposites,
    "comparison": _comparisons,
    "modifier": _modifiers,
    "atomic": _atomics,
    "rounding": _roundings,
    "signedness": _signs,
    "guard": _guards,
    "dropped": _dropped,
    "load": _loads,
    "immediate": _immediates,
    "operands": _swapped,
    "special register": _special_registers,
    "shuffle": _shuffled,
}


@dataclass(frozen=True)
class Mutation:
    """line: in the module's text, from 1. into: the new statement, empty when it is dropped. span: what of the text it
    replaces, the semicolon with it."""

    kind: str
    line: int
    statement: str
    into: str
    span: tuple[int, int]

    def apply(self, text: str) -> str:
        """The module's text with the mutation."""
        return text[: self.span[0]] + (self.into and self.into + ";") + text[self.span[1] :]

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: {self.statement} → {self.into or 'nothing'}"


def mutations(text: str, entry: str) -> Iterator[Mutation]:
    """Every mutation of one kernel's body."""
    start, end = _body(text, entry)
    for piece in re.finditer(r"[^;{}]*;|[{}]|\{[^{}]*\}", text[start:end]):
        source = re.sub(r"//[^\n]*", lambda found: " " * len(found[0]), piece[0])
        found = re.search(r"(?:^|[\n:{}])[ \t]*((?:@!?%\w+\s+)?[a-z][^\n:]*(?:::\w[^\n:]*)*);\Z", source)
        if not found:
            continue
        statement = read(found[1])
        if statement is None:
            continue
        at = start + piece.start() + found.start(1)
        line = text.count("\n", 0, at) + 1
        for kind, mutate in MUTATIONS.items():
            for into in mutate(statement):
                if into != statement.text:
                    yield Mutation(kind, line, statement.text, into, (at, at + len(found[1]) + 1))


def _body(text: str, entry: str) -> tuple[int, int]:
    found = re.search(rf"\.entry\s+{re.escape(entry)}\b", text)
    if found is None:
        raise ValueError(f"no kernel {entry}")
    start = text.index("{", found.end())
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + 1, start + brace.start()
    raise ValueError(f"the body of {entry} does not end")
