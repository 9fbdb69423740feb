"""``python -m neutrino``: the command ``neutrino``."""

from __future__ import annotations

from neutrino.cli.run import main

if __name__ == "__main__":
    main()
