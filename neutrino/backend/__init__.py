"""The ways of probing kernels: each plans, writes, assembles, verifies, and says what the hook has to know."""
