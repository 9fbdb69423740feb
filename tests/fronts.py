"""The front ends for PTX, which most tests are about: with its words and its language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial

from neutrino.language import one_liner, reader
from neutrino.probing import toml, tracepoints
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.model import Tracepoint
from neutrino.ptx.isa.opcodes import meaning_of
from neutrino.ptx.snippets.language import PTX
from neutrino.targets import LANGUAGES

parse_tracepoint = partial(tracepoints.parse_tracepoint, words=PTX.words)
read_one_liner = partial(one_liner.read_one_liner, language=PTX)
uses_of_maps = partial(one_liner.uses_of_maps, language=PTX)
read_probe_text = partial(toml.read_probe_text, languages=LANGUAGES)


def read_python_text(file: str, text: str, defines: Mapping[str, int | float] | None = None) -> DraftProbes:
    return reader.read_python_text(file, text, PTX, defines or {})


def is_matched(tracepoint: Tracepoint, parts: Sequence[str], classes: Set[str] = frozenset()) -> bool:
    return tracepoint.matches(parts, classes, meaning_of)
