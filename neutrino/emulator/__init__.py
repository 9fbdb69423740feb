"""The embedded device: PTX runs on the CPU.

It judges the rewriting, so it shares no parser with ``ptx`` and ``gcn``.
"""
