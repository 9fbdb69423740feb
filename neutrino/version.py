"""The version of Neutrino."""

__version__ = "0.1.0"
