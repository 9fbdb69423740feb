"""``neutrino`` as it would be if the numbers of fused instructions of a twin and its original were not compared.

    python -m bench.rounding_unjudged [options] COMMAND…

For ``bench/rounding.py`` to see whether what is refused, or pinned, would have computed something else.
"""

from __future__ import annotations

import sys

from neutrino.assemble.numerics.same_rounding import ArithmeticComparison
from neutrino.cli.run import main


def _no_difference(*_: object) -> None:
    """Stands in for the check that refuses twins (copies with probes) whose fused instructions differ: refuses none."""


if __name__ == "__main__":
    # The processes that make twins are forked from this one.
    ArithmeticComparison.refusal = _no_difference  # type: ignore[method-assign, assignment]
    sys.exit(main())
