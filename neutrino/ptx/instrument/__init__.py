"""Inserted code, and the twins that hold it."""
