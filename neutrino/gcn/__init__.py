"""AMD's machine code and its assembly, GCN: read, shown, held in probe files, and probed."""
