"""The memory accesses of a kernel: how they lie, how much they touch, how much comes again; for traces of -p dmat.

python dmat.py TRACE, or as a probe file's analyze_hook or callback: callback = "dmat.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["access_patterns"], sys.argv))
