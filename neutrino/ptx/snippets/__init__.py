"""What probes may hold on PTX: hand-written instructions and their verifier, typed statements as instructions."""
