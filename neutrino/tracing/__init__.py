"""Read trace directories: NumPy views of what the probes saved, and summaries."""

from neutrino.tracing.summary import TraceSummary, summarize
from neutrino.tracing.trace import Clock, Trace, TraceKernel, TraceLaunch
from neutrino.tracing.trace_folders import find_traces
from neutrino.tracing.views import MapView

__all__ = ["Clock", "MapView", "Trace", "TraceKernel", "TraceLaunch", "TraceSummary", "find_traces", "summarize"]
