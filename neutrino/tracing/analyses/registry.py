"""All analyses by name: a new one is a module and a row here."""

from __future__ import annotations

from neutrino.tracing.analyses import (
    access_patterns,
    bank_conflicts,
    barrier_wait,
    divergence,
    first_nan,
    hot_addresses,
    imbalance,
    latency,
    roles,
    roofline,
    scheduling,
    tail,
    tensor_cores,
    uncoalesced,
)
from neutrino.tracing.analyses.evidence import Analysis

ANALYSES: dict[str, Analysis] = {
    module.ANALYSIS.name: module.ANALYSIS
    for module in (
        first_nan, scheduling, tail, imbalance, roles, uncoalesced, access_patterns, bank_conflicts, hot_addresses,
        divergence, barrier_wait, latency, tensor_cores, roofline,
    )
}  # fmt: skip
"""In the order in which their findings are shown where they are as bad, and of one kernel."""
