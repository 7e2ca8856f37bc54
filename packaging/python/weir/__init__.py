"""Weir: memory larger than RAM. `Pool` has it for a program that asks for it; the command `weir`, and
`python -m weir`, run programs that are not changed within a budget of RAM."""

from ._doctor import doctor
from ._numpy import numpy_allocator
from ._pool import Pool, Region, Stats, WeirError

__all__ = ["Pool", "Region", "Stats", "WeirError", "doctor", "numpy_allocator"]
