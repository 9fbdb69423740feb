"""Whether the lanes of a warp access memory together, and where they do not; for traces of -p coalescing.

python uncoalesced.py TRACE, or as a probe file's analyze_hook or callback: callback = "uncoalesced.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["uncoalesced"], sys.argv))
