"""At which loads threads wait longest; for traces of -p latency.

python latency.py TRACE, or as a probe file's analyze_hook or callback: callback = "latency.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["latency"], sys.argv))
