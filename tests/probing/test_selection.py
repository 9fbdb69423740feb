"""-k and --filter by their rules."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection

ADD = ("_Z6vecaddPfS_i", "vecadd(float*, float*, int)")
NATIVE = ("_ZN2at6native6kernelIfEEvi", "void at::native::kernel<float>(int)")
SOFTMAX = ("softmax_kernel_0d1d", "softmax_kernel_0d1d")


@pytest.mark.parametrize(
    ("keep", "drop", "selected"),
    [
        ([], [], [ADD, NATIVE, SOFTMAX]),
        (["vecadd"], [], [ADD]),
        (["_Z6vec"], [], [ADD]),
        (["float*, float*"], [], []),
        (["at::native::kernel"], [], [NATIVE]),
        (["at::native:softmax"], [], [NATIVE, SOFTMAX]),
        (["vecadd:softmax"], [], [ADD, SOFTMAX]),
        (["vecadd", "softmax"], [], [ADD, SOFTMAX]),
        (["softmax*"], [], [SOFTMAX]),
        (["*softmax"], [], []),
        (["kernel*"], [], []),
        (["*kernel*"], [], [NATIVE, SOFTMAX]),
        (["vecadd(*)"], [], [ADD]),
        (["softmax_kernel_[0-9]d?d"], [], [SOFTMAX]),
        (["/^soft/"], [], [SOFTMAX]),
        (["/^_Z|^soft/"], [], [ADD, NATIVE, SOFTMAX]),
        (["/at::native:*:kernel/:softmax"], [], [NATIVE, SOFTMAX]),
        (["/a:b/"], [], []),
        ([], ["softmax"], [ADD, NATIVE]),
        ([], ["vecadd:/native/"], [SOFTMAX]),
        (["vecadd", "softmax"], ["vecadd"], [SOFTMAX]),
    ],
)
def test_selects(keep: list[str], drop: list[str], selected: list[tuple[str, str]]) -> None:
    selection = Selection(tuple(keep), tuple(drop))
    assert [names for names in (ADD, NATIVE, SOFTMAX) if selection.selects(*names)] == selected


@pytest.mark.parametrize("pattern", ["/(/", "/a{2,1}/", "/[/", "", "a:", ":a", "//", "^soft", "soft.*$", "a,b"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(NeutrinoError, match=r"^(-k|--filter) "):
        Selection((pattern,))
    with pytest.raises(NeutrinoError, match=r"^--filter "):
        Selection((), (pattern,))


NAMES = st.text(st.sampled_from("ab_:<>*?[]/0"), min_size=1, max_size=8)


@given(NAMES, NAMES)
def test_literals_are_substrings(pattern: str, name: str) -> None:
    if set("*?[:") & set(pattern) or pattern.startswith("/"):
        return
    assert Selection((pattern,)).selects(name, name) is (pattern in name)
    assert Selection((), (pattern,)).selects(name, name) is (pattern not in name)


@given(NAMES, NAMES)
def test_globs_are_over_the_whole_name(pattern: str, name: str) -> None:
    if ":" in pattern or pattern.startswith("/") or not set("*?[") & set(pattern):
        return
    assert Selection((pattern,)).selects(name, name) is fnmatch.fnmatchcase(name, pattern)


@given(st.lists(st.text(st.sampled_from("abc_"), min_size=1, max_size=4), min_size=1, max_size=4), NAMES)
def test_a_list_is_its_members(words: list[str], name: str) -> None:
    listed = Selection((":".join(words),))
    assert listed.selects(name, name) is Selection(tuple(words)).selects(name, name)


@given(st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3), NAMES)
def test_dropping_wins(keep: list[str], drop: list[str], name: str) -> None:
    try:
        selection = Selection(tuple(keep), tuple(drop))
        dropped = bool(drop) and Selection(tuple(drop)).selects(name, name)
    except NeutrinoError:
        return
    if dropped:
        assert not selection.selects(name, name)
    else:
        assert selection.selects(name, name) is (not keep or Selection(tuple(keep)).selects(name, name))


def test_digests_tell_selections_apart() -> None:
    digests = {
        Selection().digest,
        Selection(("a",)).digest,
        Selection((), ("a",)).digest,
        Selection(("a:b",)).digest,
        Selection(("a", "b")).digest,
    }
    assert len(digests) == 5
    assert Selection(("a",)).digest == Selection(("a",)).digest
