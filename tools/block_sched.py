"""How well blocks fill the multiprocessors: time between blocks, and the tail; for traces of -p block_sched.

python block_sched.py TRACE, or as a probe file's analyze_hook or callback: callback = "block_sched.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["scheduling", "tail"], sys.argv))
