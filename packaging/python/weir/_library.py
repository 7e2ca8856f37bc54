"""The C library that comes with this package, with the types of its functions."""

from __future__ import annotations

import ctypes
import os
import pathlib


class WeirError(OSError):
    """A request that the library refused; `errno` says which kind of refusal it is."""


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name("libweir.so")
    library = ctypes.CDLL(os.environ.get("WEIR_LIBRARY") or str(beside))
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    functions = {
        "weir_pool_new_with": [ctypes.POINTER(pointer), ctypes.POINTER(text)],
        "weir_pool_free": [pointer],
        "weir_pool_set_memory": [pointer, ctypes.c_uint64],
        "weir_alloc": [pointer, size, ctypes.POINTER(pointer)],
        "weir_free": [pointer, pointer],
        "weir_advise": [pointer, pointer, size, ctypes.c_int],
        "weir_stats": [pointer, pointer, size],
        "weir_numpy_handler": [pointer, size, ctypes.POINTER(pointer)],
    }
    for name, arguments in functions.items():
        getattr(library, name).argtypes = arguments
    library.weir_strerror.restype = text
    return library


class _Library:
    """Loaded when it is needed first: the command of this package works without it."""

    def __getattr__(self, name):
        loaded = _load()
        self.__dict__.update({known: getattr(loaded, known) for known in dir(loaded) if "weir_" in known})
        self.__dict__[name] = function = getattr(loaded, name)
        return function


library = _Library()


def check(status: int, what: str) -> None:
    """Raises what the library answered."""
    if status < 0:
        raise WeirError(-status, f"{what}: {library.weir_strerror(status).decode()}")
