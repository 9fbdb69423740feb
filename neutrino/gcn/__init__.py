"""AMD's machine code and its assembly, GCN: read, shown, and held in probe files; it is not probed yet."""
