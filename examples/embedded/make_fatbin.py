"""PTX → a fatbin as assembler source, in the section where the CUDA toolchain puts it.

python make_fatbin.py kernels.ptx vector_fatbin > fatbin.S
"""

import re
import sys
from pathlib import Path

from neutrino.fatbin import ImageKind, build_container, build_entry

text = Path(sys.argv[1]).read_bytes()
symbol = sys.argv[2]
target = re.search(rb"^\.target\s+(sm_\w+)", text, re.MULTILINE)
version = re.search(rb"^\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
if target is None or version is None:
    sys.exit(f"{sys.argv[1]}: no .target or no .version")
numbers = (int(version[1]), int(version[2]))
# cuobjdump wants the area for ptxas options to be there, even when there are none.
fatbin = build_container([build_entry(ImageKind.PTX, text, target[1].decode(), version=numbers, options="")])
print(f'\t.section .nv_fatbin, "a"\n\t.balign 8\n\t.globl {symbol}\n\t.hidden {symbol}\n{symbol}:')
for at in range(0, len(fatbin), 16):
    print("\t.byte " + ", ".join(map(str, fatbin[at : at + 16])))
print('\t.section .note.GNU-stack, "", @progbits')
