#!/usr/bin/env python3
"""Drives a memcached server over a unix socket: `memcached_client.py SOCKET KEYS`; prints what it read.

Four connections, which four threads of the server serve: values are set, changed, appended to and deleted,
and all of them read back in an order that nobody foresees.
"""

import hashlib
import random
import sys

from redis_client import Values, connected

TOGETHER = 100
CONNECTIONS = 4


class Memcached:
    """A connection that speaks the text protocol."""

    def __init__(self, path):
        self.socket = connected(path, "memcached_client")
        self.file = self.socket.makefile("rb")

    def store(self, verb, pairs):
        """Sets or appends to values, all under way at once."""
        parts = [b"%b %b 0 0 %d\r\n%b\r\n" % (verb, key, len(value), value) for key, value in pairs]
        self.socket.sendall(b"".join(parts))
        for _ in parts:
            self.expect(b"STORED")

    def expect(self, wanted):
        """The next line must be this one."""
        line = self.file.readline().strip()
        if line != wanted:
            sys.exit(f"memcached_client: the server answers {line[:200]!r} instead of {wanted!r}")

    def order(self, lines, wanted):
        """Sends commands of one line each, which are all answered in the same way."""
        self.socket.sendall(b"".join(line + b"\r\n" for line in lines))
        for _ in lines:
            self.expect(wanted)

    def get(self, keys):
        """The values of the keys that there are, by key."""
        self.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while (line := self.file.readline()) != b"END\r\n":
            words = line.split()
            if not words or words[0] != b"VALUE":
                sys.exit(f"memcached_client: the server answers {line[:200]!r}")
            found[words[1]] = self.file.read(int(words[3]) + 2)[:-2]
        return found


def main():
    """The whole course."""
    path, keys = sys.argv[1], int(sys.argv[2])
    servers, values = [Memcached(path) for _ in range(CONNECTIONS)], Values()
    for number, start in enumerate(range(0, keys, TOGETHER)):
        part = range(start, min(start + TOGETHER, keys))
        servers[number % CONNECTIONS].store(b"set", [(b"key:%d" % key, values.value(key)) for key in part])
    for start in range(0, keys, 10 * TOGETHER):
        part = [b"key:%d" % key for key in range(start, min(start + 10 * TOGETHER, keys), 10)]
        servers[1].store(b"append", [(key, b" and more") for key in part])
        servers[2].order([b"delete " + key for key in part[::3]], b"DELETED")
        servers[3].store(b"set", [(key, values.value(start, 1)) for key in part[1::3]])
    digest, order, seen = hashlib.sha256(), list(range(keys)), 0
    random.Random(1).shuffle(order)
    for number, start in enumerate(range(0, keys, TOGETHER)):
        wanted = [b"key:%d" % key for key in order[start : start + TOGETHER]]
        found = servers[number % CONNECTIONS].get(wanted)
        seen += len(found)
        for key in wanted:
            digest.update(found.get(key, b"none"))
    print(f"{seen} of {keys} keys: {digest.hexdigest()}")


if __name__ == "__main__":
    main()
