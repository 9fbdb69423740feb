"""Starts a command with the hook between it and its driver, and a listener process that makes twins."""
