"""Pools: memory larger than RAM for Python, over the C library that comes with this package."""

from __future__ import annotations

import ctypes
import errno
import operator
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from ._library import WeirError, check, library

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, DTypeLike

ADVICE = {"normal": 0, "sequential": 1, "random": 2, "willneed": 3, "cold": 4, "discard": 5}

# Files are read through a buffer of so many bytes: with `faults="inline"` the kernel cannot read into memory
# that is out.
READ_BYTES = 1 << 20


class Stats(NamedTuple):
    """What a pool holds. Bytes, where nothing else is said."""

    memory: int  #: the budget
    ram: int  #: RAM that the pool holds, at most the budget
    data: int  #: pages with contents, wherever they are
    compressed: int  #: of ram: what compressed pages take
    swapped: int  #: what pages take in the swap file
    swap_free: int  #: what is left there
    pinned: int  #: pages that are pinned
    faults: int  #: number of accesses that found no page so far
    waited_ns: int  #: nanoseconds in which faults were served so far, once something had left RAM
    pieces: int  #: number of regions and arrays that are alive


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Stats._fields]


class _Handle:
    """A pool of the library's. It ends when nothing refers to it any more: not while a call uses it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._as_parameter_, self._end = None, library.weir_pool_free
        words = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        texts = (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)
        pool = ctypes.c_void_p()
        check(library.weir_pool_new_with(ctypes.byref(pool), texts), f"a pool with {given}")
        self._as_parameter_ = pool.value

    def __del__(self) -> None:
        if getattr(self, "_as_parameter_", None):
            self._end(self._as_parameter_)


class _Piece:
    """Memory of a pool; given back when nothing refers to it any more."""

    def __init__(self, handle: _Handle, size: int) -> None:
        self.handle, self.size, self._free = handle, size, library.weir_free
        at = ctypes.c_void_p()
        check(library.weir_alloc(handle, size, ctypes.byref(at)), f"{size} bytes")
        self.address = at.value

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._free(self.handle, self.address)


class Region:
    """Bytes of a pool, zeros at first. `region.view()`, `numpy.frombuffer(region.view())` and whatever else
    takes a buffer use them where they lie, and keep them: they are given back with the last of these."""

    def __init__(self, pool: Pool, size: int) -> None:
        piece = _Piece(pool._handle(), size)
        kind = type("Bytes", (ctypes.c_ubyte * size,), {})
        self._bytes = kind.from_address(piece.address)
        self._bytes.piece = piece

    def view(self) -> memoryview:
        """A memoryview of all bytes, which can be written to."""
        return memoryview(self._bytes).cast("B")

    def __buffer__(self, flags: int) -> memoryview:
        return self.view()

    def __len__(self) -> int:
        """Number of bytes."""
        return self._bytes.piece.size

    def advise(self, advice: str, start: int = 0, stop: int | None = None) -> None:
        """Says how bytes `start` to `stop` are going to be used, which count as in a slice.

        advice: "normal", "sequential", "random", "willneed" (it is fetched now, as far as there is room),
        "cold" (it leaves first), or "discard", which makes zeros of the bytes.

        Errors: ValueError for other advice. WeirError in a child of a fork."""
        if advice not in ADVICE:
            raise ValueError(f"advice {advice!r} is none of {', '.join(ADVICE)}")
        start, stop, _ = slice(start, stop).indices(len(self))
        piece = self._bytes.piece
        at, size = piece.address + start, max(stop - start, 0)
        check(library.weir_advise(piece.handle, at, size, ADVICE[advice]), advice)


class Pool:
    """Memory within a budget of RAM, however much of it there is: what is not in use is compressed, and then
    goes to a swap file.

    memory: RAM in all, in bytes or as a text ("2GiB", "50%"), at least 8 MiB; half of the machine's where
    nothing is said.
    swap: a folder on a disk, with a size ("/var/tmp:20GiB"), a size, or "none"; a file in /var/tmp otherwise.
    faults: "thread" (needs a permission for userfaultfd), or "inline" (does not, but system calls on memory
    that is out fail with EFAULT). `doctor` says what is possible.

    Errors: WeirError for a value that is not taken, and for what cannot be had; its text says which.

    In a child of a fork the memory is not there. `with weir.Pool() as pool:` closes it at the end; where an
    exception leaves the block and arrays are alive, the pool ends with the last of these."""

    def __init__(
        self, memory: int | str | None = None, swap: str | None = None, faults: str | None = None
    ) -> None:
        self._pool: _Handle | None = None
        # Blocks of `numpy_allocator` that are active, in the process that made the pool.
        self._allocators, self._process = 0, os.getpid()
        self._pool = _Handle({"memory": memory, "swap": swap, "faults": faults})

    def _handle(self) -> _Handle:
        if self._pool is None:
            raise ValueError("the pool is closed")
        return self._pool

    def region(self, size: int) -> Region:
        """So many bytes of zeros. Each region begins at a block of 256 KiB of addresses.

        Errors: ValueError for no bytes or fewer, or 2**63 and more; WeirError for a pool that is full, or
        has no addresses for so many (some 500 budgets)."""
        return Region(self, _size(size))

    def empty(self, shape: Any, dtype: DTypeLike = float) -> numpy.ndarray:
        """A numpy array in the pool, in C order. It holds zeros.

        shape: a number of elements, or a tuple of lengths; `()` and lengths of 0 are fine.
        dtype: as numpy's; types with objects are refused, which are pointers to memory elsewhere.

        Errors: TypeError for such types and for lengths that are no integers, ValueError for negative
        lengths and 2**63 bytes and more, WeirError as `region`."""
        import numpy

        kind = _plain(dtype)
        shape = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        lengths = tuple(operator.index(length) for length in shape)
        if any(length < 0 for length in lengths):
            raise ValueError(f"negative dimensions are not allowed: {shape}")
        size = kind.itemsize
        for length in lengths:
            size *= length
        if size == 0:
            return numpy.empty(lengths, kind)
        return numpy.frombuffer(self.region(size).view(), kind).reshape(lengths)

    def zeros(self, shape: Any, dtype: DTypeLike = float) -> numpy.ndarray:
        """The same as `empty`."""
        return self.empty(shape, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: DTypeLike = None) -> numpy.ndarray:
        """A numpy array of this shape in which every element is `fill_value`, of its type where no other is
        said. Errors as `empty`, and numpy's own for a value that does not fit."""
        import numpy

        array = self.empty(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    def asarray(self, values: ArrayLike, dtype: DTypeLike = None) -> numpy.ndarray:
        """An array in the pool with these values: an array that `empty` and its like made in this very pool,
        or a view of one, as it is, unless another type is wanted; else a copy in C order, of the same shape.
        What is no array, such as a list, is made one by numpy first. Errors as `empty`."""
        import numpy

        source = numpy.asarray(values)
        kind = _plain(source.dtype if dtype is None else dtype)
        if source.dtype == kind and self._has(source):
            return source
        array = self.empty(source.shape, kind)
        array[...] = source
        return array

    def _has(self, array: numpy.ndarray) -> bool:
        """Whether an array is a view of a region of this pool."""
        base: Any = array
        while hasattr(base, "base"):
            base = base.base
        piece = getattr(getattr(base, "obj", None), "piece", None)
        return piece is not None and piece.handle is self._pool

    def from_file(
        self, path: str | os.PathLike[str], dtype: DTypeLike = "u1", count: int = -1, offset: int = 0
    ) -> numpy.ndarray:
        """Reads a file into a new array of one dimension: `count` elements (-1: all there are) from byte
        `offset` on. Nothing is written back.

        Errors: OSError as `open`; EOFError for a file that is shorter than `count` elements take, or becomes
        so meanwhile; ValueError for what is no regular file, or no whole number of elements; as `empty`."""
        kind, offset = _plain(dtype), operator.index(offset)
        if offset < 0 or kind.itemsize == 0:
            raise ValueError(f"elements of {kind.itemsize} bytes from byte {offset} on")
        with open(path, "rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ValueError(f"{path} is no regular file")
            there = max(about.st_size - offset, 0)
            if count < 0:
                count, rest = divmod(there, kind.itemsize)
                if rest:
                    raise ValueError(f"{there} bytes of {path} are no whole number of {kind}: say `count`")
            elif operator.index(count) * kind.itemsize > there:
                raise EOFError(f"{path} has {there} bytes from {offset} on: not {count} of {kind}")
            array = self.empty(count, kind)
            file.seek(offset)
            _read(file, array)
        return array

    def set_memory(self, size: int) -> None:
        """From now on the pool may have so many bytes of RAM, at most what it was made with.

        Errors: ValueError for a size that is no number of bytes; WeirError for less than 8 MiB, for more than
        it was made with, and for less than what it holds needs."""
        check(library.weir_pool_set_memory(self._handle(), _size(size)), f"a budget of {size} bytes")

    def stats(self) -> Stats:
        """What the pool holds now."""
        now = _Stats()
        check(library.weir_stats(self._handle(), ctypes.byref(now), ctypes.sizeof(now)), "stats")
        return Stats(*(getattr(now, name) for name in Stats._fields))

    def close(self) -> None:
        """Ends the pool. A second time does nothing.

        Errors: WeirError (EBUSY) while any of its memory is in use, which `gc.collect()` may help, or a block
        of `numpy_allocator` is active. The pool goes on then."""
        if self._pool is None:
            return
        if self._allocators and self._process == os.getpid():
            raise WeirError(errno.EBUSY, "numpy_allocator is still active on the pool")
        pieces = self.stats().pieces
        if pieces:
            raise WeirError(errno.EBUSY, f"{pieces} regions or arrays of the pool are still in use")
        self._pool = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.close()
        except WeirError:
            if kind is None:
                raise


def _size(size: int) -> int:
    """A number of bytes that C can have."""
    size = operator.index(size)
    if not 0 < size < 1 << 63:
        raise ValueError(f"{size} is not a number of bytes from 1 to 2**63 - 1")
    return size


def _plain(dtype: Any) -> numpy.dtype:
    """A type of values that lie in the array itself."""
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{kind} has Python objects in it, which would lie elsewhere: not in a pool")
    return kind


def _read(file: Any, array: numpy.ndarray) -> None:
    """Fills an array with what comes next in a file."""
    to, piece = array.view("u1").data, memoryview(bytearray(min(READ_BYTES, max(array.nbytes, 1))))
    at = 0
    while at < len(to):
        got = file.readinto(piece[: len(to) - at])
        if not got:
            raise EOFError(f"{file.name} ended {len(to) - at} bytes early")
        to[at : at + got] = piece[:got]
        at += got
