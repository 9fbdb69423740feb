"""How much of the arithmetic runs on tensor cores; for traces of -p tensorop -p opcode_mix.

python tensor_cores.py TRACE, or as a probe file's analyze_hook or callback: callback = "tensor_cores.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["tensor_cores"], sys.argv))
