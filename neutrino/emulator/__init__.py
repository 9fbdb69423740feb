"""The embedded device: PTX and GCN run on the CPU. Empty in this release; it shares no parser with ``ptx`` and ``gcn``."""
