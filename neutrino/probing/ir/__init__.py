"""The typed intermediate representation of probes; docs/ir.md is its reference."""
