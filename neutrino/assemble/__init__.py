"""Text to machine code that was held against the original's."""
