"""What part of a process's launches was probed: each kernel of each replay of a graph is a launch."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.reasons import CHOICE_OPTIONS, Reason
from neutrino.late_dataclass import dataclass


@dataclass(frozen=True)
class Coverage:
    """Launches and kernels of a process, of those that options such as ``-k`` and ``--launches`` have chosen.

    probed, launches: launches of twins (instrumented copies), and all. kernels_probed, kernels: those with such
    launches; functions that the hook has not seen obtained are no kernels. left_out: launches that were not chosen.
    not_probed: the other launches by reason, most first. is_known: False if counts are missing from the trace, so
    that there may be more launches and kernels than these. choice: what chooses launches, in words.
    """

    probed: int
    launches: int
    kernels_probed: int
    kernels: int
    left_out: int
    not_probed: dict[Reason, int]
    is_known: bool = True
    choice: str = field(default=CHOICE_OPTIONS, repr=False, compare=False)

    @classmethod
    def of(cls, counters: npt.NDArray[Any], choice: str | None = None, *, is_known: bool = True) -> Coverage:
        """Return the coverage of a process: how many launches were probed, and why the others were not.

        counters: launches ``[kernel][reason]``, u64, as ``counters.bin`` has them. choice: what chooses launches, in
        words, as the event of the process has it; None for all that can. is_known: as in Coverage.
        """
        by_reason = {reason: int(counters[:, reason].sum()) for reason in Reason}
        probed = by_reason.pop(Reason.PROBED)
        left_out = by_reason.pop(Reason.NOT_SELECTED)
        not_probed = {reason: by_reason[reason] for reason in sorted(by_reason, key=lambda reason: -by_reason[reason])}
        # Row 0 is of functions that the hook has not seen obtained.
        chosen = np.delete(counters[1:], Reason.NOT_SELECTED, axis=1)
        return cls(
            probed,
            probed + sum(by_reason.values()),
            int(np.count_nonzero(counters[1:, Reason.PROBED])),
            int(np.count_nonzero(chosen.any(axis=1))),
            left_out,
            {reason: count for reason, count in not_probed.items() if count},
            is_known,
            choice or CHOICE_OPTIONS,
        )

    @property
    def share(self) -> float:
        """Part of the launches that was probed, from 0 to 1, of those that are counted; 0 without a launch."""
        return self.probed / self.launches if self.launches else 0.0

    @property
    def sentence(self) -> str:
        """Launches and kernels in words, as the hook (Neutrino's library in the program) says them on stderr when the
        process ends (``coverage.c``).
        """
        return self._sentence("was", "")

    @property
    def forecast(self) -> str:
        """The sentence for a run with --memusage, which measures only: how many launches and kernels would be probed.
        """
        return self._sentence("would be", "would be ")

    def _sentence(self, nothing: str, verb: str) -> str:
        """How many launches and kernels were probed, in words.

        nothing: the verb after "nothing"; verb: what is before "probed".
        """
        if not self.is_known:
            at_least = f"at least {self.probed:,} launch{'' if self.probed == 1 else 'es'} {verb}probed; "
            return f"{at_least if self.probed else ''}how many launches there were is not known: counts are missing"
        if not self.launches:
            none = f"none of {self.left_out:,} launches was chosen ({self.choice})"
            return f"nothing {nothing} probed: {none if self.left_out else 'no launch of a kernel was seen'}"
        launches = f"{self.probed:,} of {self.launches:,} launches"
        kernels = f"{self.kernels_probed:,} of {self.kernels:,} kernels"
        left_out = f"; not chosen: {self.left_out:,} more" if self.left_out else ""
        if not self.probed:
            return f"nothing {nothing} probed: {launches}, {kernels}{left_out}"
        return f"{launches} {verb}probed ({percent(self.probed, self.launches)}), {kernels}{left_out}"


def percent(part: int, whole: int) -> str:
    """Return a share that is not 0 as a percentage, rounded down: 100 only if nothing is missing."""
    if part == whole:
        return "100 %"
    # In whole numbers: 29 / 100 * 100 is less than 29.
    return f"{100 * part // whole} %" if 100 * part >= whole else "under 1 %"
