"""The corpus tests import ``bench`` and this folder as packages of the repository."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
