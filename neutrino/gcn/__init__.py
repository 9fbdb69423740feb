"""GCN assembly and its twins. Empty in this release: AMD code objects are listed, not probed."""
