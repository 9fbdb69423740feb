"""Typed statements, which know no target: probes and map types are written in them; docs/ir.md is their reference."""
