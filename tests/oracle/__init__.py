"""The interpreter judges the rewriter: twins are run, and what they did is compared with what the original did."""
