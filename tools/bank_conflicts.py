"""Whether lanes meet at banks of shared memory; for traces of -p smem_bank_conflict.

python bank_conflicts.py TRACE, or as a probe file's analyze_hook or callback: callback = "bank_conflicts.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["bank_conflicts"], sys.argv))
