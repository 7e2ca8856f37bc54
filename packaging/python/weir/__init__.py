"""Weir runs programs within a hard budget of RAM: the command `weir`, and `python -m weir`."""
