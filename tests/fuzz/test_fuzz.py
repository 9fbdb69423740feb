"""The seeds of the fuzzing are valid inputs, and an input that a reader must not answer so is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.errors import FormatError
from tests.fuzz import seeds
from tests.fuzz.fields import places
from tests.fuzz.run import check_input
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name):
    """A seed that is refused at its first field would lead the fuzzing nowhere."""
    for data in TARGETS[name].seeds():
        assert len(data) <= seeds.LIMIT
        TARGETS[name].run(data)


def _refuse(data):
    raise FormatError("input", 0, "field", "this", "that")


def test_a_reader_may_refuse_but_not_fail_or_take_all_memory():
    check_input(_refuse, b"x")
    with pytest.raises(IndexError):
        check_input(lambda data: data[1], b"x")
    check_input(lambda data: len(bytes([7]) * (60 << 20)), b"x")
    # A process of its own: what is looked at first is the peak, and other tests may have used more here.
    program = "from tests.fuzz.run import check_input; check_input(lambda data: len(bytes([7]) * (60 << 20)) * 0, b'x')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "CostError: 60 MiB allocated, 24 MiB allowed" in done.stderr


def test_every_format_has_fields():
    kinds = {place.structure for data in seeds.hosts() for place in places(data)}
    assert {"container", "entry", "options", "wrapper", "ELF header", "section header", "program header", "symbol",
            "dynamic", "relocation", "note", "attribute", "bundle", "bundle entry", "compressed bundle",
            "archive member"} <= kinds  # fmt: skip
