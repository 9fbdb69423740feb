"""Which roles the warps of a block have, and which of these the others wait for; for traces of -p program_progress.

python roles.py TRACE, or as a probe file's analyze_hook or callback: callback = "roles.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["roles"], sys.argv))
