"""One run of a command with probes: its start, and what is beside it: the listener, scripts, traces, the terminal."""
