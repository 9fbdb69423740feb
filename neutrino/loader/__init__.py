"""From a command line to a process with the hook in front of its driver, and a listener beside it that makes twins."""
