"""Where the first NaN comes from; for traces of -p nan_finder.

python first_nan.py TRACE, or as a probe file's analyze_hook or callback: callback = "first_nan.py".
"""

import sys

from neutrino.cli.analysis_script import run

sys.exit(run(["first_nan"], sys.argv))
