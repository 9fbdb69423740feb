"""The commands: words and tables around the Python interface."""
