"""``neutrino.language`` for editors and type checkers: mypy takes good probes, and finds what is wrong in bad ones."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino import language
from neutrino.language.reader import PROBE_KEYS
from neutrino.language.vocabulary import FUNCTIONS, HELPERS, PLACES, REDUCTIONS, SITE_OPERANDS, TYPES, VECTORS
from neutrino.probing.maps import MAP_KEYS

ROOT = Path(__file__).parents[2]
EXAMPLES = [*(ROOT / "tests" / "fixtures" / "probes").glob("*.py"), *(ROOT / "examples" / "probes").glob("*.py")]
CALLED = ("clock", "time", "cuid", "smid", "array", "bits", "bound", "is_global", "has", "param", "save", "probe",
          "Map", "unlikely")
# mypy is silent about installed packages; this one may be installed as editable.
SETTINGS = """[mypy]
plugins = neutrino.language.mypy_plugin
check_untyped_defs = True
[mypy-neutrino.*]
follow_imports = silent
"""

BAD = """from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", cap=4)
class Loads:
    address: nl.u64
    value: nl.u32

half: nl.u32 = 0.5  # "float", variable has type "int"
wide: nl.u65 = 0  # "nl.u65" is not defined

@probe(pos="ld.global", level="grid")  # Argument "level" to "probe"
def a():
    pass

@probe(pos="ld.global", level="thread", side="after")  # Unexpected keyword argument "side"
def b():
    Loads.save(nl.addr)  # Missing positional argument "value"

@nl.probe(pos="ld.global", level="thread")
def c() -> None:
    Loads.save(nl.addr, nl.outt)  # has no attribute "outt"
    Loads.save(nl.addr, nl.out.q)  # has no attribute "q"
    Loads.save(nl.addr, 0.5)  # Argument 2 to "save" of "Loads"
    Loads.store(1)  # has no attribute "store"
    x: nl.u32 = nl.min(1)  # Missing positional argument "second"
    nl.save(1)  # Missing positional argument "dtype"
    nl.f()  # has no attribute "f"
    y = nl.popc(1.5)  # Argument 1 to "popc"
    z = nl.array(nl.u32)  # Missing positional argument "size"
    z[0.5] = 1  # Invalid index type "float"
    x = nl.tid.w  # has no attribute "w"
    x = nl.warp.count(x)  # has no attribute "count"
    x = nl.clock(before=x)  # Unexpected keyword argument "before"
    x = nl.param(0, dtype=nl.f32)  # expression has type "float", variable has type "int"
    x = nl.param(0.5)  # No overload variant of "param"
"""
"""A fault in each line with a comment, which has words of mypy's message."""

GOOD = """from neutrino import probe, Map
import neutrino.language as nl

LIMIT = 4

@Map(level="thread", cap="dynamic")
class Loads:
    address: nl.u64
    value: nl.f32
    clock: nl.u32

@Map(level="thread", type="histogram", low=0, high=64, step=8)
class Sizes:
    bytes: nl.u64

seen: nl.u32 = 0

def half(x: nl.u32) -> nl.u32:
    return x >> 1

@probe(pos="ld.global.v4.f32", level="thread", lanes="reaching")
def loads():
    global seen
    if seen < LIMIT and nl.out.y > 0 and nl.pred:
        Loads.save(nl.addr(), nl.out(), nl.u32(nl.clock()))
    seen += half(3)
    table = nl.array(nl.u32, 4)
    for i in range(4):
        table[i] = nl.min(seen, 3, nl.popc(nl.lanes))
    x: nl.f32 = nl.out[2]
    while nl.bound(8) and seen > nl.tid.x + nl.ctaid.y * nl.ntid.z:
        seen -= nl.warp.sum(nl.lane) + nl.warpid()
    when = nl.clock(after=x)
    x = nl.bits(seen) if nl.warp.any(x > 1) else nl.warp.first(x)
    Sizes.save(nl.bytes + nl.select(x > 0.5, table[1], 2))
"""


def test_what_is_wrong_is_found_and_nothing_else(tmp_path: Path) -> None:
    """One run of mypy for all files: reading the standard library's types takes most of it."""
    texts = {f"probe_{path.stem}": path.read_text() for path in EXAMPLES} | {"good": GOOD, "bad": BAD}
    assert len(texts) >= 5
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    files = {name: tmp_path / f"{name}.py" for name in texts}
    for name, file in files.items():
        file.write_text(texts[name])
    options = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files.values())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 1, ended.stdout + ended.stderr

    found = re.findall(r"^(.*\.py):(\d+): error: (.*)$", ended.stdout, re.MULTILINE)
    assert {Path(file).name for file, *_ in found} == {"bad.py"}, ended.stdout
    assert ended.stdout.endswith(f"Found {len(found)} errors in 1 file (checked {len(files)} source files)\n")
    wanted = {number: line.partition("  # ")[2] for number, line in enumerate(BAD.split("\n"), 1) if "  # " in line}
    assert [int(line) for _, line, _ in found] == sorted(wanted)
    for _, line, message in found:
        assert wanted[int(line)] in message


def test_it_names_what_the_compiler_takes() -> None:
    values = {*SITE_OPERANDS, *HELPERS, *FUNCTIONS, *TYPES, "array", "bits", "bound", "save", "probe", "Map", "warp"}
    values |= {"is_global", "has", "param", "unlikely"}
    assert values | {"Array", "Place", "Value", "Vector", "Warp"} == set(language.__all__)
    assert {*REDUCTIONS, "shuffle"} == {name for name in vars(language.Warp) if not name.startswith("_")}
    for name in (*FUNCTIONS, *CALLED):
        assert inspect.getdoc(getattr(language, name)), name
    for name in PLACES:
        assert isinstance(getattr(language, name), language.Place)
    for name in VECTORS:
        assert isinstance(getattr(language, name), language.Vector)
    source = inspect.getsource(language)
    for name in (*SITE_OPERANDS, *TYPES, *PLACES, "lane", "lanemask_lt", "warpid"):
        # A docstring follows each, for editors.
        assert re.search(rf'^{name}(: TypeAlias)? = [\w()]+\n"""\w', source, re.MULTILINE), name


def test_the_decorators_have_the_same_arguments() -> None:
    assert set(inspect.signature(language.probe).parameters) == set(PROBE_KEYS)
    of_maps = set(inspect.signature(language.Map).parameters) - {"options"}
    # The fields, which are "data" in TOML, are those of the class.
    assert of_maps == set(MAP_KEYS) - {"data"}


@pytest.mark.parametrize(
    "name",
    [*HELPERS, *FUNCTIONS, *REDUCTIONS, "shuffle", "save", "array", "bits", "bound", "is_global", "has", "unlikely"],
)
def test_nothing_of_it_is_run(name: str) -> None:
    function = getattr(language if hasattr(language, name) else language.warp, name)
    count = FUNCTIONS.get(name, {"save": 2, "array": 2, "shuffle": 2}.get(name, 0 if name in HELPERS else 1))
    with pytest.raises(TypeError, match=r"nl\.[\w.]+ is for probes, which are compiled"):
        function(*[1] * count)


_WORK = """
import sys
import neutrino.ptx.snippets.language, neutrino.ptx.snippets.verifier, neutrino.verification
from neutrino.ptx.snippets.lowering import lower
from tests.work import counted
with counted(lines=True) as work:
    from neutrino.language.reader import read_python_file
    probes = neutrino.verification.load_probe_file(sys.argv[1])
    lower(probes)
print(work.calls, work.lines)
"""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_probe_is_read_in_few_steps(path: Path) -> None:
    """The first one, the import of the compiler included: 10,000 calls and 20,000 lines of Python are usual."""
    said = subprocess.run([sys.executable, "-c", _WORK, str(path)], capture_output=True, text=True, check=True).stdout
    calls, lines = map(int, said.split())
    assert calls < 25_000
    assert lines < 50_000


def test_importing_the_language_imports_little() -> None:
    """What a probe file imports: nothing that a program would wait for."""
    script = (
        "import neutrino.language, sys\n"
        "print([name for name in sys.modules if name.startswith('neutrino.') or name in {'ast', 'numpy', 'mypy'}])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "['neutrino.version', 'neutrino.calls', 'neutrino.language']\n"
