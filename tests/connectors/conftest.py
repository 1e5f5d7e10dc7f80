"""Set-up that must precede the first import of torch."""

from __future__ import annotations

import os

# Tests share their cores; threads that spin while they wait for each other would starve whoever else runs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
