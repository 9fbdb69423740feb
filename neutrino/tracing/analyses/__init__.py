"""Findings in sentences: what a trace says of its kernels, how sure that is, and what to try.

``run.findings_of(summarize(trace))`` gives them. Each analysis is one module and one row of ``registry.py``.
"""
