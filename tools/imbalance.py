"""Whether some warps do more than others; for traces of -p work_per_warp.

python imbalance.py TRACE, or as a probe file's analyze_hook or callback: callback = "imbalance.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["imbalance"], sys.argv))
