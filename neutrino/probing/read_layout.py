"""The layouts as they stand in ``tools/read.py``, which reads a trace with NumPy alone.

``python -m neutrino.probing.read_layout tools/read.py`` writes them there; a test holds the file to this.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.probing.layout import (
    FORMAT_VERSION,
    FRAME,
    FRAME_MAGIC,
    KINDS,
    LANES,
    LEVELS,
    MAP_DESCRIPTOR,
    REGION_ALIGN,
    RESULT_HEADER,
    RESULT_MAGIC,
    SUM_ALIGN,
    SUM_COPIES_LEAST,
    SUM_COPIES_MOST,
    SUM_WARPS_PER_COPY,
    Struct,
)

BEGIN = "# Layout: generated from neutrino/probing/layout.py by neutrino.probing.read_layout\n"
END = "# End of the layout\n"


def python_layout() -> str:
    """The generated part of ``read.py``: constants, and the structures as NumPy types."""
    constants: dict[str, int | bytes] = {
        "FORMAT_VERSION": FORMAT_VERSION,
        "RESULT_MAGIC": RESULT_MAGIC,
        "FRAME_MAGIC": FRAME_MAGIC,
        "LANES": LANES,
        "REGION_ALIGN": REGION_ALIGN,
        "SUM_COPIES_LEAST": SUM_COPIES_LEAST,
        "SUM_COPIES_MOST": SUM_COPIES_MOST,
        "SUM_WARPS_PER_COPY": SUM_WARPS_PER_COPY,
        "SUM_ALIGN": SUM_ALIGN,
    }
    lines = [f"{name} = {_literal(value)}" for name, value in constants.items()]
    for name, words in (("KINDS", [kind.value for kind in KINDS]), ("LEVELS", [level.value for level in LEVELS])):
        lines.append(f"{name} = ({', '.join(f'{chr(34)}{word}{chr(34)}' for word in words)})")
    for name, struct in (
        ("RESULT_HEADER", RESULT_HEADER),
        ("MAP_DESCRIPTOR", MAP_DESCRIPTOR),
        ("FRAME", FRAME),
    ):
        lines += _structure(name, struct)
    return "\n".join(lines) + "\n"


def replace_layout(text: str) -> str:
    """The text of ``read.py`` with its layout renewed. Raises NeutrinoError when the marks are missing."""
    parts = re.fullmatch(f"(.*?{re.escape(BEGIN)}).*?({re.escape(END)}.*)", text, re.DOTALL)
    if not parts:
        raise NeutrinoError(f"the text lacks the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return parts.group(1) + python_layout() + parts.group(2)


def _literal(value: int | bytes) -> str:
    return str(value) if isinstance(value, int) else 'b"' + value.decode().replace("\0", "\\0") + '"'


def _structure(name: str, struct: Struct) -> list[str]:
    rows = []
    for entry in struct.dtype.descr:
        shape = f", {entry[2]}" if len(entry) > 2 else ""
        kind = str(entry[1]).replace("|", "")
        rows.append(f'        ("{entry[0]}", "{kind}"{shape}),')
    return [f"{name} = np.dtype(", "    [", *rows, "    ]", ")"]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(replace_layout(target.read_text()))
