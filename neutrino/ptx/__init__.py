"""Reads PTX text with its exact source (``module``) and writes the twins' text (``twin``).

Imports nothing by itself: checking a probe's snippets (``snippet``) must not cost the import of the patcher.
"""
