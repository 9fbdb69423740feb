"""Makes twins: from an image to its cache entry, the keys of entries, and the store that keeps them for later runs."""
