"""The instructions of AMD's processors: what each reads and writes, and how it accesses memory."""
