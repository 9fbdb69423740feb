"""Whether lanes of a warp part at branches; for traces of -p branch_divergence.

python divergence.py TRACE, or as a probe file's analyze_hook or callback: callback = "divergence.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["divergence"], sys.argv))
