"""From an image to its cache entry."""
