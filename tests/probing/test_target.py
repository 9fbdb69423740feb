"""What reads probes knows no assembly language: it asks a target, here also one that can do less than PTX."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from neutrino import targets
from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, NeutrinoError, Span
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Collective, Operator, Reduction
from neutrino.ir.types import Type
from neutrino.maker.keys import imports_of
from neutrino.probing.capabilities import CODE, Capabilities
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import Straight
from neutrino.probing.ir.verifier import verify as verify_typed
from neutrino.probing.model import CLASSES, Pattern, Subject, Tracepoint
from neutrino.probing.syntax import NO_GUARD, Fault, Statement
from neutrino.probing.target import Verified
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes
from neutrino.ptx.isa.opcodes import FIRST_PARTS
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS
from neutrino.ptx.snippets.verifier import verify_draft
from neutrino.verification import Checked, check_probes, load_probes
from tests.backend.test_neutral import WORDS

PACKAGE = Path(__file__).resolve().parents[2] / "neutrino"
MODULES = [
    *(path for package in ("ir", "probing", "language") for path in sorted((PACKAGE / package).rglob("*.py"))),
    PACKAGE / "verification.py", PACKAGE / "targets.py",
]  # fmt: skip

PUBLISHED: Mapping[str, tuple[str, ...]] = {
    # What two codes mean: programs know the codes.
    "probing/faults.py": ("a `.reg` that cannot be read", "`%P2` after `.reg %P<2>`, declared"),
    # What others write for a side of an instruction, and before the number of a line.
    "probing/tracepoints.py": ("exit", "ptx"),
    # CUDA C++ calls it __activemask.
    "language/vocabulary.py": ("activemask",),
    # The row of the target.
    "targets.py": ("PTX", "_ptx"),
}
"""Texts and names that may stand in a module."""

_SHARED = {*CLASSES, *(each.value for each in (*Operator, *Reduction)), "max", "min", "popc", "clz", "abs"}
"""Words that PTX has for an instruction, and the typed statements or the language for what they are, too."""
_OPCODES = FIRST_PARTS - _SHARED
_PATTERNS = [
    *((what, re.compile(pattern)) for what, pattern in WORDS if what != "a type"),
    ("a type", re.compile(r"(?<!SAVE)\.(?:pred|[bsuf](?:8|16|32|64|128)|bf16|tf32|f16x2|bf16x2)\b")),
]
_OF_LANGUAGE = re.compile(r"\bnl\.\w+")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each string in a source, without docstrings.

    What is put into an f-string is ``…``, but the name of ``neutrino.language``, which types of a probe follow, ``nl``.
    """
    tree = ast.parse(source)
    told = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    skipped = {id(value) for value in told if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(
                str(part.value) if isinstance(part, ast.Constant)
                else "nl" if "alias" in ast.unparse(part) else "…"
                for part in node.values
            )  # fmt: skip
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def names(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each name in a source."""
    for node in ast.walk(ast.parse(source)):
        for member in ("id", "attr", "name", "arg"):
            name = getattr(node, member, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def found_in(source: str, allowed: Sequence[str] = ()) -> list[str]:
    both = [*texts(source), *names(source)]
    found = [
        f"{line}: {what}: {text}"
        for line, text in both if text not in allowed
        for what, pattern in _PATTERNS if pattern.search(_OF_LANGUAGE.sub("nl", text))
    ]  # fmt: skip
    return found + [
        f"{line}: an opcode or a register: {text}"
        for line, text in texts(source) if text in SPECIAL_REGISTERS or text in _OPCODES - {*allowed}
    ]  # fmt: skip


def test_no_word_of_an_assembly_language() -> None:
    for path in MODULES:
        allowed = PUBLISHED.get(path.relative_to(PACKAGE).as_posix(), ())
        assert not found_in(path.read_text(), allowed), path
        assert set(allowed) <= {text for _, text in (*texts(path.read_text()), *names(path.read_text()))}, path


def test_no_assembly_language_is_imported() -> None:
    """Within functions and for types alone neither; the table of targets has one function for each."""
    for path in MODULES:
        modules = {module for _, module, _ in imports_of(path.read_text())}
        imported = {module for module in modules if module.split(".")[1:2] in (["ptx"], ["gcn"])}
        wanted = {"neutrino.ptx.snippets.language", "neutrino.gcn.language"} if path.name == "targets.py" else set()
        assert imported == wanted, path


@pytest.mark.parametrize(
    "source",
    [
        'HINT = "write ld.global"', 'WHOLE = {"mma", "wmma"}', 'hint = f"mov.b32 {name}, 0;"', 'name = "%tid.x"',
        'hint = f"as .b64 {name}"', 'arch = "sm_90"', 'message = f"{word} is not PTX"', 'first == "setp"',
    ],
)  # fmt: skip
def test_words_are_found(source: str) -> None:
    assert found_in(source)


def test_types_of_probes_are_none_of_assembly() -> None:
    assert not found_in('hint = f"write {self._alias}.u32(x) or nl.u64"\nother = "SAVE.u64 { a }"\n"""As .b32."""')


# A target that can do less


class ToyWords:
    language: ClassVar[str] = "Toy"
    load: ClassVar[str] = "fetch"
    narrowed: ClassVar[str] = "fetch !wide"
    exclusions: ClassVar[str] = "!wide !slow"
    saved: ClassVar[tuple[str, str]] = ("(a)", "(a, b)")
    other_names: ClassVar[Mapping[str, str]] = {"ldg": "fetch"}
    meanings: ClassVar[Mapping[str, str]] = {"near": "name what is near"}
    call: ClassVar[str] = "jump"
    file_ending: ClassVar[str] = "toy"
    lane_mask: ClassVar[Type] = Type.U32
    greatest: ClassVar[Mapping[Special, int]] = {Special.LANE: 31}

    def is_of_whole_warps(self, pattern: Pattern) -> bool:
        return pattern.opcode == ("all",)

    def is_reserved(self, register: str) -> bool:
        return register == "%counter"

    def type_of_operands(self, pattern: Pattern) -> Type | None:
        return Type.F32 if pattern.opcode == ("fadd",) else None

    def operand_types(self, pattern: Pattern, *, elements: bool) -> Mapping[str, Type]:
        return {"out": Type.F32} if pattern.opcode == ("fadd",) else {}


class ToySnippets:
    """A statement a line; ``keep a`` declares a register."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._registers: list[Register] = []

    def statements(self, path: KeyPath, text: str) -> tuple[list[Statement], list[Fault]]:
        found = [Statement(match.start(), match.group().strip()) for match in re.finditer(r".+", text)]
        for statement in found:
            if statement.text.startswith("keep "):
                span = self._document.span(self._document.within(path, statement.start))
                self._registers.append(Register(statement.text[5:], Type.U64, 0, span))
        return [statement for statement in found if not statement.text.startswith("keep ")], []

    def instruction(self, path: KeyPath, statement: Statement) -> WrittenInstruction:
        return WrittenInstruction(statement.text, self._document.span(self._document.within(path, statement.start)))

    def named(self, text: str) -> Sequence[str]:
        return text.split()

    def saved(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        return [], [word for _, word in words]

    def copied(
        self, words: Sequence[str], used_later: set[str], span: Span, reserved: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        return [], list(words)

    def registers(self, probes: Sequence[WrittenProbe]) -> tuple[Register, ...]:
        return tuple(self._registers)


class ToyVerifier:
    name: ClassVar[str] = "toy"
    capabilities: ClassVar[Capabilities] = Capabilities(
        tracepoints=frozenset({"kernel", "opcode", "memory"}), operands=frozenset({"BYTES"}),
        helpers=frozenset({"time", "lane", "mul", "add", "move"}), maps=frozenset({"array", "sum"}),
    )  # fmt: skip

    def verify(self, written: WrittenProbes) -> Verified:
        empty = Snippet(())
        return Verified(
            tuple(Probe(each.name, each.tracepoint, each.level, empty, None, each.span) for each in written.probes), ()
        )

    def verify_draft(self, draft: DraftProbes) -> list[Diagnostic]:
        return [
            Diagnostic(draft.file, probe.span.line, probe.span.column, "", "no instruction of Toy", code="toy")
            for probe in draft.probes for pattern in probe.tracepoint.patterns if pattern.opcode == ("none",)
        ]  # fmt: skip


class Toy:
    platform: ClassVar[str] = "toys"
    other_platforms: ClassVar[tuple[str, ...]] = ("blocks",)
    vendor: ClassVar[str] = "Anvil"
    devices: ClassVar[str] = "toys"
    device: ClassVar[str] = "toy1"
    words: ClassVar[ToyWords] = ToyWords()
    register_types: ClassVar[tuple[str, ...]] = ("u64",)
    register_files: ClassVar[tuple[str, ...]] = ()
    save_guard: ClassVar[str] = NO_GUARD
    verifier: ClassVar[ToyVerifier | None] = ToyVerifier()

    def snippets(self, document: Document) -> ToySnippets:
        return ToySnippets(document)

    def register_note(self, registers: Sequence[Register]) -> str:
        return ""

    def lines(self, registers: Sequence[Register], statements: Sequence[Straight]) -> Iterator[str]:
        return (f"keep {register.name}" for register in registers)


class Unverified(Toy):
    platform: ClassVar[str] = "drafts"
    vendor: ClassVar[str] = "Loom"
    verifier: ClassVar[ToyVerifier | None] = None


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is the target of files that name none."""
    monkeypatch.setattr(targets, "_LOADERS", {"cuda": Toy, "toys": Toy, "drafts": Unverified})


HEAD = """\
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="{type}", size=8)
class Values:
    value: nl.u64
"""


def checked(path: Path, text: str) -> Checked:
    path.write_text(text)
    return check_probes([str(path)])


def python(tmp_path: Path, body: str, position: str = "fetch", map_type: str = "array") -> Checked:
    probe = f'\n@probe(pos="{position}", level="thread", before=True)\ndef p():\n    {body}\n'
    return checked(tmp_path / "p.py", HEAD.format(type=map_type) + probe)


def test_what_the_target_has_is_accepted(tmp_path: Path) -> None:
    done = python(tmp_path, "Values.save(nl.bytes * 2 + nl.time())")
    assert done.diagnostics == ()
    assert done.probe_set().target == ""


@pytest.mark.parametrize(
    ("body", "position", "map_type", "line", "message", "hint"),
    [
        ("Values.save(nl.clock())", "fetch", "array", 10, "the operation clock", "nl.time() has nanoseconds"),
        ("Values.save(nl.addr)", "fetch", "array", 10, "the value ADDR", ""),
        ("Values.save(nl.u64(nl.warp.sum(nl.lane())))", "fetch", "array", 10, "the operation sum",
         "save each value to a map of type sum"),
        ("Values.save(nl.u64(nl.warp.max(nl.lane())))", "fetch", "array", 10, "the operation max", ""),
        ("Values.save(nl.bytes)", "barrier", "array", 8, "the tracepoint barrier", ""),
        ("Values.save(nl.bytes)", "fetch", "max", 5, "a map of type max", ""),
    ],
)  # fmt: skip
def test_what_the_target_lacks_is_refused_at_its_line(
    tmp_path: Path, body: str, position: str, map_type: str, line: int, message: str, hint: str
) -> None:
    """Before anything is written; with what it has instead, if it has that."""
    (fault,) = [each for each in python(tmp_path, body, position, map_type).diagnostics if each.code == CODE]
    assert (fault.line, fault.message) == (line, f"{message} is not available for kernels in toy")
    assert fault.hint == hint
    assert fault.source == (tmp_path / "p.py").read_text().split("\n")[line - 1]


def test_the_targets_verifier_is_asked(tmp_path: Path) -> None:
    assert [each.code for each in python(tmp_path, "Values.save(nl.bytes)", "none").diagnostics] == ["toy"]


def test_words_of_the_target_are_in_hints(tmp_path: Path) -> None:
    hints = [python(tmp_path, "Values.save(nl.bytes)", position).diagnostics[0].hint for position in ("?", "LDG")]
    assert hints[0].startswith('write "kernel", an opcode such as "fetch"')
    assert hints[1] == 'Toy has it as "fetch"'
    near = python(tmp_path, "Values.save(nl.bytes)", "fetch !near").diagnostics[0]
    assert (near.message, near.hint) == ("'!near' excludes nothing: it is no modifier", "name what is near")
    with pytest.raises(NeutrinoError, match="no special register's name"):
        load_probes([str(_written(tmp_path / "r.py", HEAD.format(type="array") + "\ncounter: nl.u64 = 0\n"))])
    with pytest.raises(NeutrinoError, match=r"as in 'fetch \{ @bytes = sum\(BYTES\) \}'"):
        load_probes([], [""])


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


TOML = """\
platform = "{platform}"
[map.M]
type = "array"
level = "thread"
size = 8
data = {{ value = "u64" }}
[probe.p]
position = "fetch"
level = "thread"
before = '''
keep a
a := 3
SAVE [ M ] {{ a }}
'''
"""


def test_snippets_are_read_by_the_target(tmp_path: Path) -> None:
    done = checked(tmp_path / "p.toml", TOML.format(platform="toys"))
    (part,) = done.written
    assert isinstance(part, WrittenProbes)
    assert [register.name for register in part.registers] == ["a"]
    assert done.probe_set().target == "toy"
    assert done.probe_set().platform == "toys"
    assert targets.written(done.probe_set()).endswith("before = \"\"\"\nkeep a\n\"\"\"\n")


def test_a_platform_without_a_verifier_is_refused(tmp_path: Path) -> None:
    done = checked(tmp_path / "p.toml", TOML.format(platform="drafts"))
    assert done.is_valid
    with pytest.raises(NeutrinoError) as error:
        done.probe_set()
    assert 'p.toml:1:12: error: platform is "drafts": Loom\'s assembly is not put into kernels yet' in str(error.value)
    assert 'hint: write its snippets in Toy, with platform = "toys", for toys' in str(error.value)


def test_what_else_a_platform_is_called(tmp_path: Path) -> None:
    (fault, *_) = checked(tmp_path / "p.toml", TOML.format(platform="blocks")).diagnostics
    assert (fault.message, fault.hint) == ('platform "blocks" is not known', 'Anvil\'s is called "toys"')


class WideWords(ToyWords):
    lane_mask: ClassVar[Type] = Type.U64
    greatest: ClassVar[Mapping[Special, int]] = {Special.LANE: 63}


class WideVerifier(ToyVerifier):
    capabilities: ClassVar[Capabilities] = Capabilities()


class Wide(Toy):
    """Warps of 64 lanes."""

    words: ClassVar[ToyWords] = WideWords()
    verifier: ClassVar[ToyVerifier | None] = WideVerifier()


LANES_OF = """\
lanes = nl.lanes
voted = nl.warp.ballot(nl.bytes > 4)
same = nl.warp.match(nl.bytes)
below = nl.lanemask_lt & voted & same & lanes
count: nl.u32 = nl.popc(below)
Values.save(below)
"""


def _destinations(snippet: Snippet) -> list[Register]:
    return [statement.destination for statement in snippet.statements if hasattr(statement, "destination")]


@pytest.mark.parametrize(("language", "kind"), [(Toy, Type.U32), (Wide, Type.U64)])
def test_a_set_of_lanes_is_as_wide_as_a_warp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: type[Toy], kind: Type
) -> None:
    monkeypatch.setattr(Toy, "verifier", WideVerifier())
    monkeypatch.setattr(targets, "_LOADERS", {"cuda": language, "toys": language})
    done = python(tmp_path, LANES_OF.replace("\n", "\n    "))
    assert done.diagnostics == ()
    (probe,) = done.probe_set().probes
    assert probe.before is not None
    types = {register.name.strip("%").partition("$")[0]: register.type for register in _destinations(probe.before)}
    types = {name: types[name] for name in ("lanes", "voted", "same", "below", "count")}
    assert types == {**dict.fromkeys(("lanes", "voted", "same", "below"), kind), "count": Type.U32}


@pytest.mark.parametrize(("language", "is_bounded"), [(Toy, True), (Wide, False)])
def test_loops_over_lanes_turn_as_often_as_there_are_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: type[Toy], is_bounded: bool
) -> None:
    monkeypatch.setattr(Toy, "verifier", WideVerifier())
    monkeypatch.setattr(targets, "_LOADERS", {"cuda": language, "toys": language})
    body = "i: nl.u32 = 0\n    n: nl.u32 = 8 * nl.lane()\n    while i < n: i += 1\n    Values.save(i)"
    found = [each.message for each in python(tmp_path, body).diagnostics]
    assert (not any("bound" in message for message in found)) is is_bounded


def test_a_set_of_32_lanes_is_no_u64_of_ptx() -> None:
    """Whoever builds typed statements without a front end."""
    here, lanes = Span(1, 1), Register("%lanes", Type.U64, 0, Span(1, 1), is_local=True)
    vote = Collective(Reduction.BALLOT, lanes, Constant(Type.PRED, 1), here)
    probe = Probe("p", Tracepoint("kernel", (Pattern(Subject.KERNEL),)), Level.THREAD, Snippet((vote,)), None, here)
    draft = DraftProbes("p", "", (), (lanes,), (probe,), lane_mask=Type.U64)
    assert verify_typed(draft) == []
    assert [fault.message for fault in verify_draft(draft)] == ["a set of lanes is u32, and goes into no u64"]
    assert [fault.message for fault in verify_typed(replace(draft, lane_mask=Type.U32))] == [
        "u64 where the operation takes u32"
    ]
