"""What a machine allows."""

from __future__ import annotations

from ._library import WeirError
from ._pool import Pool


def doctor() -> dict[str, str | None]:
    """What pools can have here: small ones are made to see it. None where it works, else the reason.

    "faults thread", "faults inline": the two settings for `faults`. "swap file": one in /var/tmp. "numpy":
    `numpy_allocator`. The command `weir doctor` has more, with what to do.

    Never raises; a library that cannot be loaded is a reason for all of them."""
    tried = {
        "faults thread": lambda: Pool("8MiB", swap="none", faults="thread"),
        "faults inline": lambda: Pool("8MiB", swap="none", faults="inline"),
        "swap file": _with_swap,
        "numpy": _with_numpy,
    }
    return {name: _reason(attempt) for name, attempt in tried.items()}


def _reason(attempt) -> str | None:
    try:
        attempt()
    except (OSError, ImportError, ValueError) as error:
        return str(error)
    return None


def _either(**settings) -> Pool:
    """A pool of the kind that is permitted."""
    try:
        return Pool("8MiB", faults="thread", **settings)
    except WeirError:
        return Pool("8MiB", faults="inline", **settings)


def _with_swap() -> None:
    _either(swap="/var/tmp:16MiB")


def _with_numpy() -> None:
    from ._numpy import numpy_allocator

    with numpy_allocator(_either(swap="none")):
        pass
