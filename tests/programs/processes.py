"""Starting and ending what a test runs: a switch of a new process, and an end for all that it has started.

Servers make sessions of their own and processes that outlive their parents. The runner is therefore the
parent of orphans below it, and ends what is left one by one, by number.
"""

import ctypes
import os
import signal
import sys
import time

from sampler import descendants

PR_SET_CHILD_SUBREAPER = 36
PR_SET_THP_DISABLE = 41
END_S = 10


def prctl(option):
    """Sets one of the switches of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def take_charge():
    """From now on orphans below this process are its children, and SIGTERM lets it clean up as Ctrl-C
    does."""
    prctl(PR_SET_CHILD_SUBREAPER)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def without_huge_pages():
    """For a new process, before it is the program: its peak is not to depend on the machine's settings."""
    prctl(PR_SET_THP_DISABLE)


def children():
    """The children of this process, also those that have ended and were not waited for."""
    return {pid for pid in descendants(os.getpid(), depth=1) if pid != os.getpid()}


def end(child, orphans=True):
    """Kills a child (a Popen) and what is below it; with `orphans` all else below this process too."""
    for pid in descendants(child.pid):
        if pid != child.pid or child.poll() is None:
            kill(pid)
    child.wait()
    deadline = time.monotonic() + END_S
    # What an orphan has started becomes an orphan in its turn.
    while orphans and (left := children()) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.002)


def kill(pid):
    """Kills a process, which may have ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
