"""What probes say of AMD's assembly: tracepoints and hand-written snippets, and what of them each processor can do."""
