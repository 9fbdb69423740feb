"""A run of a command: starts it with its probes, and what is beside it: the listener, scripts, traces, the terminal."""
