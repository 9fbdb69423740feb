"""Probes in the typed representation of ``neutrino.ir``: drafts, their verification, the verified set."""
