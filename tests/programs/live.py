#!/usr/bin/env python3
"""Programs that are watched while they run: `weir top`, on a terminal whose screen is read, and `weir serve`.

The terminal is a session of tmux, with a server of its own."""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

import checks
from run import WEIR

SECONDS = 60
MIB = 1 << 20
# Needs three times its budget of 32M, and walks over it for ever.
WALKS = r"""
SIZE = 96 << 20
data = bytearray(SIZE)
def walk(round):
    for at in range(0, SIZE, 4096):
        data[at : at + 16] = b"%08d%08d" % (at // 4096, round)
walk(0)
print("ready", flush=True)
round = 0
while True:
    round += 1
    walk(round)
"""
# The same below a program that does nothing, and a child that does so as well.
FORKS = r"""
import os
child = os.fork()
""" + WALKS


class Watched:
    """A program under Weir, and a terminal."""

    def __init__(self, faults, folder):
        self.faults, self.folder = faults, folder
        self.servers = 0

    @contextlib.contextmanager
    def started(self, code):
        """A program, which prints `ready` when it has its data; killed in the end, with its children."""
        weir = [str(WEIR), "run", "-q", "-m", "32M", "--faults", self.faults, "--"]
        line = [*weir, sys.executable, "-c", code]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
            try:
                assert child.stdout.readline() == "ready\n"
                yield child
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)

    def server(self):
        """How the tmux of the last terminal is called."""
        return ["tmux", "-S", str(self.folder / f"tmux-{self.servers}")]

    def tmux(self, *words):
        """Has tmux do something, and returns what it says."""
        env = {**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
        command = [*self.server(), "-f", "/dev/null", *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=SECONDS, check=False)
        assert ran.returncode == 0, (words, ran.stderr)
        return ran.stdout

    @contextlib.contextmanager
    def terminal(self, command, width=80, height=24):
        """A new terminal on which a command runs, and a shell that waits behind it."""
        # One that was told to end may still be there.
        self.servers += 1
        line = f"{command}; echo status $?; stty -a | tr ' ;' '\\n\\n' | grep -x -e '-*echo'; exec cat"
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), line)
        try:
            yield
        finally:
            subprocess.run([*self.server(), "kill-server"], capture_output=True, check=False)

    def screen(self):
        """The lines that are to be seen."""
        return self.tmux("capture-pane", "-p").split("\n")[:-1]

    def press(self, *keys):
        """Presses keys, as tmux names them."""
        self.tmux("send-keys", *keys)

    def until(self, seen):
        """Waits until the screen shows something, and returns it."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            lines = self.screen()
            if seen("\n".join(lines)):
                return lines
            time.sleep(0.05)
        raise AssertionError("\n".join(["never seen:", *lines]))


def row_of(pid, text):
    """The line of a process, in words."""
    found = re.search(rf"^ *{pid} .*$", text, re.M)
    return found[0].split() if found else []


def budget_of(pid):
    """As the process has it, bytes."""
    command = [WEIR, "stat", str(pid)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    return int(re.search(r"^weir_budget_bytes (\d+)$", ran.stdout, re.M)[1])


def a_process_is_shown_and_gets_another_budget(watched):
    """In 80x24 without colours: its figures, and what the keys for more and less do."""
    with watched.started(WALKS) as child, watched.terminal(f"{WEIR} top {child.pid}"):
        lines = watched.until(lambda text: row_of(child.pid, text)[8:9] not in ([], ["-"]))
        assert len(lines) == 24 and all(len(line) <= 80 for line in lines), lines
        words = "PID RAM BUDGET OUT POOL RATIO SWAP FLT/S LOST% P99 PROGRAM"
        assert words.split() in [line.split() for line in lines], lines
        row = row_of(child.pid, "\n".join(lines))
        assert row[2] == "32M" and row[3].endswith("M") and row[10].endswith("python3"), row
        watched.press("-")
        watched.until(lambda text: f"process {child.pid}: 29 MiB, was 32 MiB" in text)
        assert budget_of(child.pid) == 29 * MIB
        watched.until(lambda text: row_of(child.pid, text)[2:3] == ["29M"])
        watched.press("+")
        watched.until(lambda text: f"process {child.pid}: 31 MiB, was 29 MiB" in text)
        assert budget_of(child.pid) == 31 * MIB
        watched.press("+")
        watched.press("+")
        watched.until(lambda text: "no more than it was started with, 32 MiB" in text)
        assert budget_of(child.pid) == 32 * MIB and child.poll() is None
        watched.press("q")
        watched.until(lambda text: re.search(r"^status 0\necho$", text, re.M))


def children_stand_below_their_parents_and_a_filter_hides_others(watched):
    """In forty columns; and a process that ends goes."""
    with watched.started(FORKS) as child, watched.terminal(f"{WEIR} top {child.pid}", 40, 14):
        lines = watched.until(lambda text: text.count("python3") == 2 and "└─" in text)
        assert all(len(line) <= 40 for line in lines), lines
        first, second = [line for line in lines if "python3" in line or "└─" in line]
        assert first.split()[0] == str(child.pid) and "└─" in second, lines
        below = int(second.split()[0])
        watched.press("/", *str(below), "Enter")
        watched.until(lambda text: not row_of(child.pid, text) and row_of(below, text))
        watched.press("Escape")
        watched.until(lambda text: row_of(child.pid, text))
        os.kill(below, 9)
        watched.until(lambda text: not row_of(below, text) and row_of(child.pid, text))
        child.kill()
        child.wait(SECONDS)
        watched.until(lambda text: "No process of yours runs under Weir" in text)


def the_terminal_is_as_before_whatever_ends_it(watched):
    """A signal, and the key that would be one."""

    def terminate():
        shell = watched.tmux("display-message", "-p", "#{pane_pid}").strip()
        with open(f"/proc/{shell}/task/{shell}/children", encoding="ascii") as children:
            os.kill(int(children.read()), signal.SIGTERM)

    def terminate_in_a_key():
        watched.press("-H", "1b", "5b")
        terminate()

    for end, status in ((terminate, 1), (terminate_in_a_key, 1), (lambda: watched.press("C-c"), 0)):
        with watched.terminal(f"{WEIR} top"):
            watched.until(lambda text: text.startswith("weir: ") and "q quit" in text)
            assert watched.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}") == "1 0\n"
            end()
            lines = watched.until(lambda text: re.search(r"^status \d+\n-*echo$", text, re.M))
            assert lines[:2] == [f"status {status}", "echo"], lines
            assert watched.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}") == "0 1\n"


def it_ends_with_its_terminal(_):
    """Which goes: whether that comes with a signal or without."""
    for session in (True, False):
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        streams = {"stdin": terminal, "stdout": terminal, "stderr": subprocess.DEVNULL}
        lead = (lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if session else None
        env = {**os.environ, "TERM": "xterm"}
        streams |= {"start_new_session": session, "preexec_fn": lead, "env": env}
        child = subprocess.Popen([WEIR, "top"], **streams)
        os.close(terminal)
        try:
            drawn = b""
            while b"weir: " not in drawn:
                drawn += os.read(main, 4096)
            os.write(main, b"\x1b[")  # a half of a key
            os.close(main)
            assert child.wait(SECONDS) == 1
        finally:
            child.kill()
            child.wait(SECONDS)


def where_there_is_no_terminal_that_is_said(_):
    """Neither on a pipe nor on one that cannot draw."""
    ran = subprocess.run([WEIR, "top"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 2 and "weir: top needs a terminal" in ran.stderr, ran
    main, terminal = pty.openpty()
    dumb = {**os.environ, "TERM": "dumb"}
    streams = {"stdin": terminal, "stdout": terminal, "stderr": subprocess.PIPE}
    ran = subprocess.run([WEIR, "top"], **streams, env=dumb, timeout=SECONDS, check=False)
    os.close(main)
    os.close(terminal)
    assert ran.returncode == 2 and b"`weir stat --watch 1`" in ran.stderr, ran


@contextlib.contextmanager
def served():
    """A server, which is ended; gives its port."""
    command = [str(WEIR), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            told = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ for .*\n", server.stdout.readline())
            yield int(told[1])
            assert server.poll() is None
        finally:
            server.kill()


def ask(port, path, method="GET", **headers):
    """Status, content type and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def prometheus_reads_what_is_served(watched):
    """Its own tool finds nothing to complain about, and the counters of a program rise."""
    with watched.started(WALKS) as child, served() as port:
        status, kind, text = ask(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), (status, kind)
        tool = ["promtool", "check", "metrics"]
        checked = subprocess.run(tool, input=text, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), checked

        def value(name, text):
            found = re.search(rf'^{name}{{pid="{child.pid}",name="[^"]*"}} (\S+)$', text, re.M)
            return float(found[1])

        assert value("weir_budget_bytes", text) == 32 * MIB
        before, deadline = value("weir_waited_seconds_total", text), time.monotonic() + SECONDS
        while value("weir_waited_seconds_total", ask(port, "/metrics")[2]) <= before:
            assert time.monotonic() < deadline, before
        wants = {"Accept": "application/openmetrics-text; version=1.0.0"}
        status, kind, text = ask(port, "/metrics", **wants)
        assert kind.startswith("application/openmetrics-text") and text.endswith("\n# EOF\n"), kind
        assert "# TYPE weir_pgfault counter\n" in text and value("weir_pgfault_total", text) > 0
        listed = {one["pid"]: one for one in json.loads(ask(port, "/stat.json")[2])}
        assert listed[child.pid]["weir_budget_bytes"] == 32 * MIB, listed
        status, kind, text = ask(port, "/")
        assert (status, kind) == (200, "text/html; charset=utf-8") and '"/stat.json"' in text
        assert not re.search(r"https?://|src=|href=|@import", text), "the page needs nothing from outside"


def a_port_that_is_taken_is_said(_):
    """With what to do."""
    with served() as port:
        command = [WEIR, "serve", "--listen", f"127.0.0.1:{port}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ran.returncode == 1 and "already; name another port, or 0" in ran.stderr, ran
    command = [WEIR, "serve", "--listen", "192.0.2.1:0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 1 and "cannot listen on 192.0.2.1:0" in ran.stderr, ran


def what_is_not_for_others_is_refused(_):
    """Names that a web site could have, other methods, other paths."""
    with served() as port:
        assert ask(port, "/stat.json", Host=f"localhost:{port}")[0] == 200
        for path in ("/", "/metrics", "/stat.json"):
            assert ask(port, path, Host=f"evil.example:{port}")[0] == 421, path
        assert [ask(port, "/metrics", method)[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3
        assert [ask(port, path)[0] for path in ("/metrics/", "/../etc/passwd", "/stat")] == [404] * 3
        assert ask(port, "/metrics", "HEAD")[::2] == (200, "")
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(b"\x16\x03\x01 no request\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 "), "no request"


def clients_that_say_nothing_keep_nobody_for_long(_):
    """They are let go, and there are not too many of them."""
    with served() as port, contextlib.ExitStack() as open_ones:
        silent = []
        for _ in range(40):
            client = socket.create_connection(("127.0.0.1", port), SECONDS)
            silent.append(open_ones.enter_context(client))
        # Those beyond the bound are answered at once, the others when their time is over.
        answers = [client.recv(100).split(b" ")[1] for client in reversed(silent)]
        assert answers == [b"503"] * 8 + [b"408"] * 32, answers
        assert ask(port, "/")[0] == 200


CHECKS = [
    a_process_is_shown_and_gets_another_budget,
    children_stand_below_their_parents_and_a_filter_hides_others,
    the_terminal_is_as_before_whatever_ends_it,
    it_ends_with_its_terminal,
    where_there_is_no_terminal_that_is_said,
    prometheus_reads_what_is_served,
    a_port_that_is_taken_is_said,
    what_is_not_for_others_is_refused,
    clients_that_say_nothing_keep_nobody_for_long,
]


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, CHECKS, checks.in_folders(Watched)))
