"""Whether a twin rounds where its original does, and how that is shown; ``docs/numerics.md``."""
