#!/usr/bin/env python3
"""Drives a redis server over a unix socket: `redis_client.py SOCKET KEYS REQUESTS`; ends it.

Values of 700 bytes are loaded; a child saves them while others are written; the data set goes through a file
and back (DEBUG RELOAD) and must have the same digest; what the child saved must be the data as they were at
the fork; every value is read back; redis-benchmark makes REQUESTS of three kinds.
"""

import hashlib
import os
import random
import socket
import subprocess
import sys
import time

VALUE_BYTES = 700
PIPELINE = 500
CONNECT_S = 60
SAVE_S = 120
ANSWER_S = 120


def connected(path, who):
    """A socket of the server that listens at `path`, once it does; ends the program when nobody answers."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        there = socket.socket(socket.AF_UNIX)
        there.settimeout(ANSWER_S)
        try:
            there.connect(path)
            return there
        except (FileNotFoundError, ConnectionRefusedError):
            there.close()
            if time.monotonic() > deadline:
                sys.exit(f"{who}: nobody answers after {CONNECT_S} s")
            time.sleep(0.02)


class Redis:
    """A connection that speaks RESP."""

    def __init__(self, path):
        self.socket = connected(path, "redis_client")
        self.file = self.socket.makefile("rb")

    def send(self, commands):
        """Sends commands (tuples of bytes or str) without waiting for answers."""
        parts = []
        for command in commands:
            words = [word.encode() if isinstance(word, str) else word for word in command]
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))

    def answer(self):
        """The next answer; an error ends the program."""
        line = self.file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind not in (b"+", b":"):
            sys.exit(f"redis_client: the server answers {line[:200]!r}")
        return rest

    def ask(self, *command):
        """One command and its answer."""
        self.send([command])
        return self.answer()

    def ask_all(self, commands):
        """Many commands, a few hundred under way at a time; yields the answers."""
        commands = list(commands)
        for start in range(0, len(commands), PIPELINE):
            part = commands[start : start + PIPELINE]
            self.send(part)
            for _ in part:
                yield self.answer()


class Values:
    """Texts of 700 bytes, the same for the same number and generation: LZ4 makes pages a fourth as large."""

    def __init__(self):
        rng = random.Random(20240229)
        words = "alpha beta gamma delta orders customer street invoice pending shipped".split()
        self.phrases = [" ".join(rng.choices(words, k=8)) for _ in range(8)]

    def value(self, number, generation=0):
        """The value of a key."""
        rng = random.Random(number * 8 + generation)
        drawn = rng.getrandbits(64)
        phrases = (self.phrases[drawn >> 3 * at & 7] for at in range(16))
        return f"{number}:{generation}:{drawn:016x} {' '.join(phrases)}"[:VALUE_BYTES].encode()


def wait_for_save(redis):
    """Returns when no child saves any more; its failure ends the program."""
    deadline = time.monotonic() + SAVE_S
    while True:
        said = redis.ask("INFO", "persistence").decode()
        if "rdb_bgsave_in_progress:0" in said:
            break
        if time.monotonic() > deadline:
            sys.exit(f"redis_client: the child that saves has not ended after {SAVE_S} s")
        time.sleep(0.05)
    if "rdb_last_bgsave_status:ok" not in said:
        sys.exit("redis_client: the child that saves has failed")


def same(what, first, second):
    """Ends the program when two digests differ."""
    if first != second:
        sys.exit(f"redis_client: {what}: digest {second} instead of {first}")
    print(f"{what}: {first.decode()}", flush=True)


def main():
    """The whole course."""
    path, keys, requests = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    redis, values = Redis(path), Values()
    for _ in redis.ask_all(("SET", f"key:{number}", values.value(number)) for number in range(keys)):
        pass
    saved = redis.ask("DEBUG", "DIGEST")
    redis.ask("BGSAVE")
    changes = [("SET", f"key:{number}", values.value(number, 1)) for number in range(0, keys, 5)]
    changes += [("RPUSH", f"list:{number % 50}", values.value(number)[:80]) for number in range(0, keys, 10)]
    changes += [("DEL", f"key:{number}") for number in range(1, keys, 50)]
    for _ in redis.ask_all(changes):
        pass
    wait_for_save(redis)
    folder = redis.ask("CONFIG", "GET", "dir")[1].decode()
    os.replace(f"{folder}/dump.rdb", f"{folder}/at-fork.rdb")
    before = redis.ask("DEBUG", "DIGEST")
    redis.ask("DEBUG", "RELOAD")
    same("written to a file and read back", before, redis.ask("DEBUG", "DIGEST"))
    digest = hashlib.sha256()
    order = list(range(keys))
    random.Random(1).shuffle(order)
    for found in redis.ask_all(("GET", f"key:{number}") for number in order):
        digest.update(found or b"none")
    print(f"{redis.ask('DBSIZE').decode()} keys: {digest.hexdigest()}", flush=True)
    os.replace(f"{folder}/at-fork.rdb", f"{folder}/dump.rdb")
    redis.ask("DEBUG", "RELOAD", "NOSAVE")
    same("as the child saved it", saved, redis.ask("DEBUG", "DIGEST"))
    command = ["redis-benchmark", "-s", path, "-q", "-n", requests, "-r", "1000", "-d", str(VALUE_BYTES)]
    command += ["-t", "get,set,lpush"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=ANSWER_S, check=True)
    redis.send([("SHUTDOWN", "NOSAVE")])
    left = redis.file.read()
    print(f"ended {left!r}")


if __name__ == "__main__":
    main()
