"""How the accesses of warps lie in memory; for traces of -p dmat.

python access_patterns.py TRACE, or as a probe file's analyze_hook or callback: callback = "access_patterns.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["access_patterns"], sys.argv))
