"""How long warps wait at barriers and for copies, and where; for traces of -p barrier_wait -p warp_timeline.

python barrier_wait.py TRACE, or as a probe file's analyze_hook or callback: callback = "barrier_wait.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["barrier_wait"], sys.argv))
