"""--range: only launches in ranges that the program has marked are probed; NVIDIA's own headers mark them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.errors import NeutrinoError
from neutrino.run.launch_choice import Choice
from neutrino.run.range_choice import Scope, pattern, patterns

from .conftest import Bench
from .driven import driven


def chosen(bench: Bench, home: Path, *texts: str, scope: Scope = Scope.THREAD) -> dict[str, str]:
    """The variables of a run with these ranges, as the command sets them."""
    variables = Choice(ranges=texts, range_scope=scope).variables()
    module = bench.hooked({}, home)["LD_AUDIT"]
    hook = next(path for path in Path(module).parents[1].glob("*/libcuda.so.1"))
    return {
        **{f"NEUTRINO_{name}": value for name, value in variables if value is not None},
        "NVTX_INJECTION64_PATH": str(hook),
        "NEUTRINO_NVTX": str(hook),
    }


def check(
    bench: Bench, home: Path, texts: tuple[str, ...], lines: tuple[str, ...], probed: int, launches: int, *,
    scope: Scope = Scope.THREAD,
) -> None:
    """What the program does, of whose launches so many are chosen. A line may begin with the thread's number."""
    home.mkdir(exist_ok=True)
    with driven(bench, home, chosen(bench, home, *texts, scope=scope)) as program:
        for line in lines:
            thread, _, rest = line.partition(" ") if line[0].isdigit() else ("0", "", line)
            program.tell(rest, thread=int(thread))
    program.check(bench, launches, probed=probed, not_selected=launches - probed)


NESTED = ("launch 1", "push step", "launch 2", "push inner", "launch 4", "pop", "launch 8", "pop", "launch 16")


@pytest.mark.parametrize(
    ("texts", "probed"),
    [
        (("step",), 14), (("inner",), 4), (("step", "inner"), 14), (("st*",), 14), (("*",), 14), (("*n*r",), 4),
        (("step/",), 14), (("@step",), 14), (("other",), 0), (("ste",), 0), (("Step",), 0), (("*p", "x"), 14),
        (("a@step",), 0), (("*@step",), 14), (("st\\*",), 0), (("i*n*n*r",), 4),
    ],
)  # fmt: skip
def test_nested_ranges(bench: Bench, tmp_path: Path, texts: tuple[str, ...], probed: int) -> None:
    check(bench, tmp_path, texts, NESTED, probed, 31)


def test_every_form_of_a_name(any_bench: Bench, tmp_path: Path) -> None:
    lines = (
        "push step", "launch 1", "pop", "push-wide step", "launch 2", "pop", "push-ex step", "launch 4", "pop",
        "start 0 step", "launch 8", "end 0", "start-wide 1 step", "launch 16", "end 1",
        "start-ex 2 step", "launch 32", "end 2", "launch 64",
    )  # fmt: skip
    check(any_bench, tmp_path, ("step",), lines, 63, 127)


def test_wide_names_are_utf_8(bench: Bench, tmp_path: Path) -> None:
    lines = (
        "push-wide größe→𝄞", "launch 1", "pop", "push größe→𝄞", "launch 2", "pop", "push-wide größe", "launch 4", "pop",
    )  # fmt: skip
    check(bench, tmp_path, ("größe→𝄞",), lines, 3, 7)


def test_domains(any_bench: Bench, tmp_path: Path) -> None:
    lines = (
        "domain 0 app", "domain-wide 1 lib", "domain 2 app",
        "domain-push 0 step", "launch 1", "domain-pop 0",
        "domain-push 1 step", "launch 2", "domain-pop 1",
        "push step", "launch 4", "pop",
        # The same domain, asked for twice.
        "domain-push 2 step", "launch 8", "domain-pop 0", "launch 16",
        # Each domain has a stack of its own.
        "domain-push 0 step", "domain-push 1 other", "push other", "pop", "launch 32", "domain-pop 0", "launch 64",
        "domain-pop 1",
    )  # fmt: skip
    check(any_bench, tmp_path / "app", ("app@step",), lines, 1 + 8 + 32, 127)
    check(any_bench, tmp_path / "lib", ("lib@step",), lines, 2, 127)
    check(any_bench, tmp_path / "default", ("step",), lines, 4, 127)
    check(any_bench, tmp_path / "all", ("*@step",), lines, 1 + 2 + 4 + 8 + 32, 127)


def test_registered_strings(any_bench: Bench, tmp_path: Path) -> None:
    lines = (
        "domain 0 app", "register 0 step", "domain-push-registered 0", "launch 1", "domain-pop 0",
        "domain 1 app", "register-wide 1 step", "domain-push-registered 1", "launch 2", "domain-pop 1",
        "domain 2 app", "register 2 other", "domain-push-registered 2", "launch 4", "domain-pop 2",
        "domain 3 lib", "register 3 step", "domain-push-registered 3", "launch 8", "domain-pop 3",
        "domain-push-wide 0 step", "launch 16", "domain-pop 0",
    )  # fmt: skip
    check(any_bench, tmp_path, ("app@step",), lines, 1 + 2 + 16, 31)


TWO_THREADS = (
    "push step", "1 launch 1", "0 launch 2", "1 push step", "1 launch 4", "0 pop", "0 launch 8", "1 launch 16", "1 pop",
    "1 launch 32", "0 launch 64",
)  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "probed"), [(Scope.THREAD, 2 + 4 + 16), (Scope.PROCESS, 1 + 2 + 4 + 8 + 16)], ids=str
)
def test_what_is_pushed_is_of_a_thread_or_of_the_process(
    any_bench: Bench, tmp_path: Path, scope: Scope, probed: int
) -> None:
    check(any_bench, tmp_path, ("step",), TWO_THREADS, probed, 127, scope=scope)


@pytest.mark.parametrize("scope", list(Scope))
def test_a_thread_that_ends_in_a_range(any_bench: Bench, tmp_path: Path, scope: Scope) -> None:
    lines = ("1 push step", "1 push step", "1 launch 1", "1 end", "0 launch 2", "2 launch 4")
    check(any_bench, tmp_path, ("step",), lines, 1, 7, scope=scope)


def test_what_is_started_is_of_the_process(any_bench: Bench, tmp_path: Path) -> None:
    lines = (
        "start 0 step", "1 launch 1", "start 1 step", "1 end 0", "2 launch 2", "2 end 1", "launch 4",
        "start 0 other", "launch 8", "end 0",
        # In a domain that ends before it does.
        "domain 2 app", "domain-start 2 step", "launch 16", "destroy 2", "launch 32", "domain-end 2", "launch 64",
        "domain 3 app", "domain-start 3 step", "launch 128", "domain-end 3", "launch 256",
    )  # fmt: skip
    check(any_bench, tmp_path / "default", ("step",), lines, 3, 511)
    check(any_bench, tmp_path / "app", ("app@step",), lines, 16 + 128, 511)
    check(any_bench, tmp_path / "pushed", ("step/", "app@step/"), lines, 0, 511)


def test_ranges_that_are_deeper_than_any(bench: Bench, tmp_path: Path) -> None:
    lines = (*["push other"] * 255, "push step", "launch 1", "push step", "launch 2", *["pop"] * 2, "launch 4",
             "push step", "push other", "push other", "pop", "launch 8", "pop", "pop", "launch 16")  # fmt: skip
    # Those on level 256 and above are not chosen.
    check(bench, tmp_path, ("step",), lines, 1 + 2 + 8, 31)


def test_misuse_harms_nobody(any_bench: Bench, tmp_path: Path) -> None:
    lines = ("launch 1", "misuse", "launch 2", "push step", "launch 4", "misuse", "launch 8")
    # What was popped too often has ended the range.
    check(any_bench, tmp_path, ("step", "*@*"), lines, 4, 15)


def test_replays_are_chosen_by_where_they_are_launched(any_bench: Bench, tmp_path: Path) -> None:
    lines = (
        "push step", "graph 3", "pop", "replay 2", "push step", "replay 4", "push inner", "1 replay 1", "pop", "pop",
        "replay 8", "1 push step", "1 replay 16", "1 pop",
    )  # fmt: skip
    check(any_bench, tmp_path, ("step",), lines, 3 * (4 + 16), 3 * 31)


def test_replays_of_an_updated_graph(bench: Bench, tmp_path: Path) -> None:
    lines = (
        "graph 3", "push step", "replay 1", "update 3", "replay 2", "pop", "replay 4", "push step", "replay 8", "pop",
    )  # fmt: skip
    check(bench, tmp_path, ("step",), lines, 3 * 11, 3 * 15)


def test_numbers_are_of_launches_in_ranges(bench: Bench, tmp_path: Path) -> None:
    extra = chosen(bench, tmp_path, "step") | {"NEUTRINO_LAUNCHES": "1:4"}
    with driven(bench, tmp_path, extra) as program:
        program.tell("launch 10", "push step", "launch 2", "pop", "launch 10", "push step", "launch 10", "pop")
    program.check(bench, 32, probed=3, not_selected=29)


def test_a_launch_outside_is_at_most_one_call(bench: Bench, tmp_path: Path) -> None:
    """The hook jumps to the driver, which returns to the program, if the compiler made it so."""
    calls = []
    for launches in (8, 520):
        home = tmp_path / str(launches)
        home.mkdir()
        counts = home / "counts.json"
        extra = chosen(bench, home, "step")
        extra["NEUTRINO_EMBEDDED"] = f"{bench.environment(home)['NEUTRINO_EMBEDDED']};count={counts}"
        with driven(bench, home, extra) as program:
            program.tell("push step", "launch 1", "pop", f"launch {launches}")
        calls.append(Counter(json.loads(counts.read_text())["hook"]))
    assert calls[1] - calls[0] in (Counter(), Counter({"cuLaunchKernel": 512}))


# --- what else the trace says ---


def notes(bench: Bench, home: Path, extra: Mapping[str, str], *lines: str) -> tuple[list[str], str]:
    with driven(bench, home, extra) as program:
        program.tell(*lines)
    return [event["text"] for event in program.files.events if event["event"] == "note"], program.said


def test_a_program_that_was_in_no_range(bench: Bench, tmp_path: Path) -> None:
    extra = chosen(bench, tmp_path, "step")
    found, said = notes(bench, tmp_path / "none", extra, "launch 3")
    assert found == ["--range: the process has never marked a range by NVTX"]
    assert "nothing was probed: none of 3 launches was chosen (" in said
    found, _ = notes(bench, tmp_path / "others", extra, "push other", "launch 3", "pop")
    assert found == ["--range: the process was in none of these ranges"]
    found, _ = notes(bench, tmp_path / "that", extra, "push step", "launch 3", "pop")
    assert found == []


def test_another_tool_that_takes_nvtx_later(bench: Bench, tmp_path: Path) -> None:
    extra = chosen(bench, tmp_path, "step") | {"NVTX_INJECTION64_PATH": "/opt/tool.so"}
    found, said = notes(bench, tmp_path, extra, "push step", "launch 3", "pop")
    assert found == [
        "NVTX_INJECTION64_PATH is /opt/tool.so, so NVTX does not call Neutrino: --range chooses none of its ranges",
        "--range: the process has never marked a range by NVTX",
    ]
    assert said.count("neutrino: NVTX_INJECTION64_PATH is /opt/tool.so: --range chooses no NVTX range") == 1


def test_without_range_nvtx_does_not_come_here(bench: Bench, tmp_path: Path) -> None:
    hook = {name: value for name, value in chosen(bench, tmp_path, "x").items() if not name.startswith("NEUTRINO_")}
    for number, extra in enumerate(({}, hook)):
        with driven(bench, tmp_path / str(number), extra) as program:
            program.tell("push step", "launch 3", "pop", "launch 2")
        program.check(bench, 5, probed=5)


# --- what the command takes ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step", ("-", "", "step")), ("app@step", ("-", "app", "step")), ("app@step/", ("/", "app", "step")),
        ("@step", ("-", "", "step")), ("a*@*b", ("-", "a\x01", "\x01b")), ("a b", ("-", "", "a b")),
        (r"a\@b@c\/\*\\", ("-", "a@b", "c/*\\")), (r"a\,b", ("-", "", "a,b")), ("a::b(c)", ("-", "", "a::b(c)")),
    ],
)  # fmt: skip
def test_ranges_that_the_command_takes(text: str, expected: tuple[str, str, str]) -> None:
    assert tuple(pattern(text).split("\x1f")) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "that names no range"), ("app@", "that names no range"), ("/", "that names no range"),
        ("step\\", "that names no range"), ("a@b@c", "a second @"), ("a,b", "give --range once for each range"),
        ("a/b", "ranges within ranges (/)"), ("[a", "ranges within ranges ([)"), ("a]", "ranges within ranges (])"),
        ("a/+/b", "ranges within ranges (/)"), ("regex:a", "regular expressions"), ("a\nb", "control characters"),
    ],
)  # fmt: skip
def test_ranges_that_it_refuses(text: str, error: str) -> None:
    with pytest.raises(NeutrinoError) as raised:
        pattern(text)
    assert error in str(raised.value)


def test_too_many_ranges() -> None:
    assert (patterns(["a"] * 64) or "").count("\x1e") == 63
    with pytest.raises(NeutrinoError, match="at most 64"):
        patterns(["a"] * 65)
