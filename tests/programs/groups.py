"""Memory control groups for tests, of version 1 or 2: a limit that can be changed, and no swap of the
kernel's. Whoever makes one must be root."""

import contextlib
import os
import pathlib
import time

# A group is busy for a moment after its last process has ended.
PATIENCE_SECONDS = 10


def parent():
    """The folder below which a group can be made, and the version of its files."""
    own = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    for _, controllers, path in own:
        if "memory" in controllers.split(","):
            roots = [at for _, at, kind, options, *_ in mounts if kind == "cgroup" and "memory" in options]
            return pathlib.Path(f"{roots[0]}{path}"), 1
    roots = [at for _, at, kind, *_ in mounts if kind == "cgroup2"]
    assert roots, "no control groups are mounted: nothing has a limit here"
    root = pathlib.Path(roots[0])
    # A group with processes gives its children no controllers, but for the root.
    controllers = root / "cgroup.subtree_control"
    if "memory" not in controllers.read_text().split():
        controllers.write_text("+memory")
    return root, 2


class Group:
    """A group, in which no process is yet."""

    count = 0

    def __init__(self, limit):
        above, self.version = parent()
        Group.count += 1
        self.folder = above / f"weir-test-{os.getpid()}-{Group.count}"
        self.folder.mkdir()
        if self.version == 1:
            (self.folder / "memory.swappiness").write_text("0")
        elif (self.folder / "memory.swap.max").exists():
            (self.folder / "memory.swap.max").write_text("0")
        self.set(limit)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def set(self, limit):
        """From now on its processes have so many bytes."""
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.folder / name).write_text(str(limit))

    def enter(self):
        """Takes the calling process into the group: for `preexec_fn`."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        """How many of its processes the kernel has killed for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        words = [line.split() for line in (self.folder / name).read_text().splitlines()]
        return next(int(number) for key, number in words if key == "oom_kill")

    @contextlib.contextmanager
    def never_kills(self):
        """Whatever happens inside, no process of the group is killed."""
        before = self.kills()
        yield
        assert self.kills() == before, f"{self.kills() - before} processes were killed for want of memory"
