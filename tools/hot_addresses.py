"""Whether some addresses are accessed far more than others; for traces of -p hot_lines -p atomic_contention.

python hot_addresses.py TRACE, or as a probe file's analyze_hook or callback: callback = "hot_addresses.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["hot_addresses"], sys.argv))
