"""Input and output on arrays larger than the budget: `io_work.py MB`; prints a line per kind with a SHA-256.

Every kind hands parts of the arrays to the kernel, so that pages that are not in RAM are read and written by
it: files, vectors, direct I/O, pipes to other programs, sockets, datagrams, and several threads at once."""

import concurrent.futures
import hashlib
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading

import numpy

ALIGNED = 4096


def sha256(array):
    """Hex digest of an array's bytes."""
    return hashlib.sha256(memoryview(array).cast("B")).hexdigest()


def make(megabytes):
    """int64 below 2**16, of which every value comes 16 times (about 10:1): several copies exist at a time."""
    rng = numpy.random.Generator(numpy.random.PCG64(21))
    count = (megabytes << 20) // 8
    return rng.integers(0, 1 << 16, size=count // 16, dtype=numpy.int64).repeat(16)


def parts(array, size):
    """Views of `size` bytes each."""
    view = memoryview(array).cast("B")
    return [view[at : at + size] for at in range(0, len(view), size)]


def files(source, target):
    """tofile, fromfile, and reading into the array that is there."""
    with tempfile.TemporaryFile() as file:
        source.tofile(file)
        file.seek(0)
        yield "fromfile", sha256(numpy.fromfile(file, dtype=source.dtype))
        file.seek(0)
        assert file.readinto(target) == target.nbytes
        yield "readinto", sha256(target)


def vectors(source, target):
    """writev, readv, pwritev and preadv of many parts, in the order and against it."""
    target.fill(0)
    size = 100_000
    out, back = parts(source, size), parts(target, size)
    with tempfile.TemporaryFile(buffering=0) as file:
        for first in range(0, len(out), 64):
            wanted = sum(map(len, out[first : first + 64]))
            assert os.writev(file.fileno(), out[first : first + 64]) == wanted
        file.seek(0)
        for first in range(0, len(back), 64):
            wanted = sum(map(len, back[first : first + 64]))
            assert os.readv(file.fileno(), back[first : first + 64]) == wanted
        yield "readv", sha256(target)
        target.fill(0)
        for first in reversed(range(0, len(out), 16)):
            os.pwritev(file.fileno(), out[first : first + 16], first * size)
            os.preadv(file.fileno(), back[first : first + 16], first * size)
        yield "preadv", sha256(target)


def direct(source, target):
    """O_DIRECT from and into aligned parts of arrays."""
    target.fill(0)
    skip = -target.ctypes.data % ALIGNED
    length = (target.nbytes - ALIGNED) // (1 << 20) * (1 << 20)
    into = memoryview(target).cast("B")[skip : skip + length]
    room = mmap.mmap(-1, length + ALIGNED)
    aligned = numpy.frombuffer(room, dtype=numpy.uint8, count=length)
    aligned[:] = numpy.frombuffer(source, dtype=numpy.uint8, count=length)
    folder = os.environ.get("TMPDIR", "/tmp")
    name = os.path.join(folder, f"direct-{os.getpid()}")
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        os.unlink(name)
        for at in range(0, length, 1 << 20):
            assert os.pwrite(file, memoryview(aligned)[at : at + (1 << 20)], at) == 1 << 20
        for at in reversed(range(0, length, 1 << 20)):
            assert os.preadv(file, [into[at : at + (1 << 20)]], at) == 1 << 20
    finally:
        os.close(file)
    yield "direct", hashlib.sha256(into).hexdigest()


def programs(source, target):
    """Through other programs: pipes both ways, and what subprocess makes of the output."""
    for command in (["cat"], ["sh", "-c", "exec cat"]):
        done = subprocess.run(command, input=memoryview(source).cast("B"), stdout=subprocess.PIPE, check=True)
        yield f"{len(command)}-word program", hashlib.sha256(done.stdout).hexdigest()
        del done
    target.fill(0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        feeder = threading.Thread(target=feed, args=(child.stdin, source))
        feeder.start()
        yield "pipes", receive(child.stdout.readinto, target)
        feeder.join()
    names = {f"VARIABLE_{number}": "x" * number for number in range(400)}
    done = subprocess.run(["env"], env={**os.environ, **names}, capture_output=True, text=True, check=True)
    yield "environment", str(sum(line.startswith("VARIABLE_") for line in done.stdout.splitlines()))


def feed(file, source):
    """Writes the whole array and closes."""
    for part in parts(source, 1 << 20):
        while part:
            part = part[file.write(part) :]
    file.close()


def receive(readinto, target):
    """Fills the array; returns its digest."""
    view, at = memoryview(target).cast("B"), 0
    while at < len(view):
        got = readinto(view[at : at + (3 << 20)])
        assert got, at
        at += got
    return sha256(target)


def streams(source, target):
    """Sockets: a pair, and TCP over the loopback; sendall, send of vectors, recv_into."""
    listener = socket.create_server(("127.0.0.1", 0))
    pairs = [socket.socketpair(), (socket.create_connection(listener.getsockname()), listener.accept()[0])]
    listener.close()
    for name, (left, right) in zip(("socket pair", "tcp"), pairs):
        target.fill(0)
        sender = threading.Thread(target=left.sendall, args=(memoryview(source).cast("B"),))
        sender.start()
        yield name, receive(right.recv_into, target)
        sender.join()
        left.close()
        right.close()


def datagrams(source, target):
    """Datagrams of 30 kB in both directions, gathered and scattered, with their sender's address."""
    target.fill(0)
    size = 30_000
    left = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    right = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with left, right:
        left.bind(("127.0.0.1", 0))
        right.bind(("127.0.0.1", 0))
        right.settimeout(60)
        for out, back in zip(parts(source, size), parts(target, size)):
            half = len(out) // 2
            assert left.sendmsg([out[:half], out[half:]], [], 0, right.getsockname()) == len(out)
            got, _, _, address = right.recvmsg_into([back[:half], back[half:]])
            assert got == len(out) and address == left.getsockname()
    yield "datagrams", sha256(target)


def threads(source, target):
    """Four threads copy, each through a file of its own, while the others do the same."""
    target.fill(0)

    def copy(pair):
        out, back = pair
        with tempfile.TemporaryFile(buffering=0) as file:
            written = 0
            while written < len(out):
                written += file.write(out[written:])
            file.seek(0)
            got = 0
            while got < len(back):
                got += file.readinto(back[got:])

    size = 5 << 20
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(copy, zip(parts(source, size), parts(target, size))))
    yield "threads", sha256(target)


def main():
    """Runs every kind on the same pair of arrays."""
    source = make(int(sys.argv[1]))
    target = numpy.zeros_like(source)
    print("source", sha256(source))
    for kind in (files, vectors, direct, programs, streams, datagrams, threads):
        for name, answer in kind(source, target):
            print(name, answer, flush=True)
    print("source again", sha256(source))


if __name__ == "__main__":
    main()
