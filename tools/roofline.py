"""Whether memory or arithmetic is the limit; for traces of -p gmem_bytes -p opcode_mix.

python roofline.py TRACE, or as a probe file's analyze_hook or callback: callback = "roofline.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["roofline"], sys.argv))
