"""External tools: finding them, running them, and parsing their output."""
