"""Whether multiprocessors stand idle while others finish a launch; for traces of -p block_sched.

python tail.py TRACE, or as a probe file's analyze_hook or callback: callback = "tail.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["tail"], sys.argv))
