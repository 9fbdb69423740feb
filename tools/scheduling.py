"""How much time passes between a block's end and the begin of the next one in its place; for traces of -p block_sched.

python scheduling.py TRACE, or as a probe file's analyze_hook or callback: callback = "scheduling.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["scheduling"], sys.argv))
