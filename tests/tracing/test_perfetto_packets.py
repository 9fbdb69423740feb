"""Numbers in a table of packets are what Protocol Buffers decode them as, and as long as their columns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from neutrino.tracing import perfetto_packets as pb


def _decoded(encoded: bytes) -> int:
    """Return a number of Protocol Buffers, each of whose bytes but the last says that another one follows."""
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))


@pytest.mark.parametrize("width", range(1, 11))
def test_numbers_fill_their_columns(width: int) -> None:
    form = pb.form(pb.Column("first", 1, width), pb.number(2, 3), pb.Column("second", 3, 9))
    dice = random.Random(width)
    most = min(1 << 7 * width, 1 << 63) - 1
    numbers = [0, most, *(dice.getrandbits(dice.randint(1, 63)) & most for _ in range(500))]
    rows = form.rows(len(numbers), first=np.array(numbers), second=7)
    offset, found = form.places["first"]
    assert found == width
    assert [_decoded(row[offset : offset + width].tobytes()) for row in rows] == numbers
    places = {offset + place for place in range(width)}
    second, _ = form.places["second"]
    assert {_decoded(row[second : second + 9].tobytes()) for row in rows} == {7}
    others = [place for place in range(len(form.template)) if place not in places and not second <= place < second + 9]
    assert {row[others].tobytes() for row in rows} == {bytes(form.template[place] for place in others)}
    if width < 9:
        with pytest.raises(ValueError, match=f"more than {width} bytes"):
            form.rows(1, first=most + 1, second=7)
