"""The external tools: where they are, how they are run, and what they say about their work."""
