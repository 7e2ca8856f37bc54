"""Pools: memory larger than RAM for Python, over the C library that comes with this package."""

import collections
import ctypes
import errno
import operator
import os
import pathlib

Stats = collections.namedtuple(
    "Stats", "memory ram data compressed swapped swap_free pinned faults waited_ns"
)
Stats.__doc__ = """What a pool holds. Bytes, but for `faults` (a number) and `waited_ns` (nanoseconds)."""

ADVICE = {"normal": 0, "sequential": 1, "random": 2, "willneed": 3, "cold": 4, "discard": 5}


class WeirError(OSError):
    """A request that the library refused; `errno` says which kind of refusal it is."""


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Stats._fields]


def _load():
    """The library, with the types of its functions."""
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
        "weir_stats": [pointer, ctypes.POINTER(_Stats), size],
    }
    for name, arguments in functions.items():
        getattr(library, name).argtypes = arguments
    library.weir_strerror.restype = text
    return library


class _Library:
    """Loaded when it is needed first: the command of this package works without it."""

    def __getattr__(self, name):
        library = _load()
        self.__dict__.update({known: getattr(library, known) for known in dir(library) if "weir_" in known})
        self.__dict__[name] = function = getattr(library, name)
        return function


_library = _Library()


def _check(status, what):
    if status < 0:
        raise WeirError(-status, f"{what}: {_library.weir_strerror(status).decode()}")


class _Piece:
    """Memory of a pool; given back when nothing refers to it any more."""

    def __init__(self, pool, size):
        at = ctypes.c_void_p()
        _check(_library.weir_alloc(pool._handle(), size, ctypes.byref(at)), f"{size} bytes")
        self.pool, self.address, self.size = pool, at.value, size
        pool._pieces += 1

    def __del__(self):
        if getattr(self, "address", None) and self.pool._pool:
            _library.weir_free(self.pool._pool, self.address)
            self.pool._pieces -= 1


class Region:
    """Bytes of a pool, zeros at first. `region.view()`, `numpy.frombuffer(region.view())` and whatever else
    takes a buffer use them where they lie, and keep them: they are given back with the last of these."""

    def __init__(self, pool, size):
        piece = _Piece(pool, size)
        kind = type("Bytes", (ctypes.c_ubyte * size,), {})
        self._bytes = kind.from_address(piece.address)
        self._bytes.piece = piece

    def view(self):
        """A memoryview of all bytes, which can be written to."""
        return memoryview(self._bytes).cast("B")

    def __buffer__(self, flags):
        return self.view()

    def __len__(self):
        return self._bytes.piece.size

    def advise(self, advice, start=0, stop=None):
        """Says how bytes `start` to `stop` are going to be used: normal, sequential, random, willneed, cold,
        or discard, which makes zeros of them."""
        if advice not in ADVICE:
            raise ValueError(f"advice {advice!r} is none of {', '.join(ADVICE)}")
        start, stop, _ = slice(start, stop).indices(len(self))
        piece = self._bytes.piece
        at, size = piece.address + start, max(stop - start, 0)
        _check(_library.weir_advise(piece.pool._handle(), at, size, ADVICE[advice]), advice)


class Pool:
    """Memory within a budget of RAM, however much of it there is: what is not in use is compressed, and then
    goes to a swap file.

    memory: RAM in all, in bytes or as a text ("2GiB", "50%"); half of the machine's where nothing is said.
    swap: a folder on a disk, with a size ("/var/tmp:20GiB"), a size, or "none"; a file in /var/tmp otherwise.
    faults: "thread" (needs a permission for userfaultfd), or "inline" (does not, but system calls on memory
    that is out fail with EFAULT).

    In a child of a fork the memory is not there."""

    def __init__(self, memory=None, swap=None, faults=None):
        self._pool, self._pieces = None, 0
        given = {"memory": memory, "swap": swap, "faults": faults}
        words = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        texts = (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)
        pool = ctypes.c_void_p()
        _check(_library.weir_pool_new_with(ctypes.byref(pool), texts), f"a pool with {given}")
        self._pool = pool.value

    def _handle(self):
        if not self._pool:
            raise ValueError("the pool is closed")
        return self._pool

    def region(self, size):
        """So many bytes of zeros. Each region begins at a block of 256 KiB of addresses."""
        return Region(self, _size(size))

    def empty(self, shape, dtype=float):
        """A numpy array of this shape, as `numpy.empty`; it holds zeros. Types with objects are refused: they
        are pointers to memory elsewhere."""
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"{kind} has Python objects in it, which would lie elsewhere: not in a pool")
        shape = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        if any(length < 0 for length in shape):
            raise ValueError(f"negative dimensions are not allowed: {shape}")
        size = kind.itemsize
        for length in shape:
            size *= operator.index(length)
        if size == 0:
            return numpy.empty(shape, kind)
        return numpy.frombuffer(self.region(size).view(), kind).reshape(shape)

    zeros = empty

    def full(self, shape, fill_value, dtype=None):
        """A numpy array of this shape in which every element is `fill_value`, as `numpy.full`."""
        import numpy

        array = self.empty(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    def set_memory(self, size):
        """From now on the pool may have so many bytes of RAM, at most what it was made with."""
        _check(_library.weir_pool_set_memory(self._handle(), _size(size)), f"a budget of {size} bytes")

    def stats(self):
        """What the pool holds now, as `Stats`."""
        now = _Stats()
        _check(_library.weir_stats(self._handle(), ctypes.byref(now), ctypes.sizeof(now)), "stats")
        return Stats(*(getattr(now, name) for name in Stats._fields))

    def close(self):
        """Ends the pool. Refused while any of its memory is in use; then `gc.collect()` may help."""
        if self._pool:
            if self._pieces:
                text = f"{self._pieces} regions or arrays of the pool are still in use"
                raise WeirError(errno.EBUSY, text)
            _check(_library.weir_pool_free(self._pool), "close")
            self._pool = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_pool", None):
            _library.weir_pool_free(self._pool)  # pieces hold the pool: there are none any more
            self._pool = None


def _size(size):
    """A number of bytes that C can have."""
    size = operator.index(size)
    if not 0 < size < 1 << 63:
        raise ValueError(f"{size} is not a number of bytes from 1 to 2**63 - 1")
    return size
