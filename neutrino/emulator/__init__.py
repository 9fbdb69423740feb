"""The embedded device: PTX runs on the CPU.

It verifies the rewriting, so it shares no parser with ``ptx`` and ``gcn``.
"""
