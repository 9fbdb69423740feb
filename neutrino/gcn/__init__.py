"""AMD's GCN assembly, as far as probe files may hold it; AMD's code objects are listed, and not probed yet."""
