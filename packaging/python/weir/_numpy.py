"""numpy's own arrays in a pool: a handler of memory as NEP 49 has it. Its functions are the library's; numpy
calls them, without Python between."""

from __future__ import annotations

import contextlib
import ctypes
import operator
from typing import Iterator

from ._library import check, library
from ._pool import Pool

# What numpy's table of functions has at these places, and the version that it is in since numpy 1.22.
FEATURE_VERSION, SET_HANDLER, DEFAULT_HANDLER = 211, 304, 306
VERSION_NEEDED = 0xF

# Arrays of up to a block of addresses would fill it badly, and malloc is faster.
THRESHOLD = 256 << 10


def numpy_allocator(pool: Pool, threshold: int = THRESHOLD) -> contextlib.AbstractContextManager[Pool]:
    """Within `with weir.numpy_allocator(pool):`, arrays of more than `threshold` bytes that numpy makes lie
    in the pool: results, copies, what is read from files. Smaller ones are where they always were.

    It holds for the thread, or the task of asyncio, that enters it. An array keeps to the pool after the
    block, also when it changes its length, and keeps the pool. numpy 1.22 or newer.

    threshold: bytes of an array's data.

    Errors: ValueError for a threshold that is no number of bytes, and for a closed pool. ImportError without
    numpy, or with an older one. Inside, MemoryError for an array that the pool has no room for. `pool.close`
    is refused (WeirError) while the block lasts, or an array in the pool lives."""
    threshold = operator.index(threshold)
    if not 0 <= threshold < 1 << 63:
        raise ValueError(f"a threshold of {threshold} bytes")
    set_handler, name = _numpy()
    return _active(pool, set_handler, _capsule(pool, threshold, name))


@contextlib.contextmanager
def _active(pool: Pool, set_handler, capsule) -> Iterator[Pool]:
    pool._handle()  # a decorator comes here at every call
    before = set_handler(capsule)
    pool._allocators += 1
    try:
        yield pool
    finally:
        pool._allocators -= 1
        set_handler(before)


def _numpy():
    """numpy's function that sets a handler, and the name that handlers' capsules have."""
    try:
        from numpy._core._multiarray_umath import _ARRAY_API
    except ImportError:
        from numpy.core._multiarray_umath import _ARRAY_API
    pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(pointer(_ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    if ctypes.PYFUNCTYPE(ctypes.c_uint)(table[FEATURE_VERSION])() < VERSION_NEEDED:
        raise ImportError("numpy_allocator needs numpy 1.22 or newer")
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
    default = ctypes.cast(table[DEFAULT_HANDLER], ctypes.POINTER(ctypes.py_object))[0]
    return set_handler, _python("PyCapsule_GetName", ctypes.c_void_p, ctypes.py_object)(default)


def _capsule(pool: Pool, threshold: int, name: int):
    """A handler for numpy. It keeps the pool, and goes with the last array that was made by it."""
    handler = ctypes.c_void_p()
    check(library.weir_numpy_handler(pool._handle(), threshold, ctypes.byref(handler)), "a handler for numpy")
    address = ctypes.c_void_p
    make = _python("PyCapsule_New", ctypes.py_object, address, address, address)
    keep = _python("PyCapsule_SetContext", ctypes.c_int, ctypes.py_object, ctypes.py_object)
    capsule = make(handler, name, ctypes.cast(library.weir_numpy_capsule_free, address))
    _python("Py_IncRef", None, ctypes.py_object)(pool)  # the capsule's end takes it back
    keep(capsule, pool)
    return capsule


def _python(name: str, result, *arguments):
    """A function of Python's C interface."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))
