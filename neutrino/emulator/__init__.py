"""The embedded device: PTX and GCN run on the CPU. Empty in this release.

It judges the rewriting, so it shares no parser with ``ptx`` and ``gcn``.
"""
