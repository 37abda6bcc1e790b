"""What the process-level tests share: running the real binary with a deadline on everything.

A test is a method of a class derived from Case. Every process is started through Case.start() or Case.run(), is given
a deadline, and is stopped by its pid when the test ends, however it ends. Only loopback, only ports that the kernel
gave (port 0), only files under a folder of the test's own. The standard library is all that is needed.
"""
import contextlib
import ctypes
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BIN_DIR = os.environ.get("WL_BIN_DIR") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin")
WEIGHTLANE = os.path.join(BIN_DIR, "weightlane")
SKIPPED = 77
DEADLINE = float(os.environ.get("WL_TEST_DEADLINE", "60"))  # seconds, for one wait


_LIBC = ctypes.CDLL(None)


def _die_with_parent():
    """In the child: if the test itself is killed, the kernel kills what it started."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Late(AssertionError):
    pass


class Process:
    """A running child: its stdout in lines, its stderr collected, both read with deadlines."""

    def __init__(self, arguments, prefix=(), environment=None, stdin=None):
        self.arguments = list(arguments)
        self.errors_file = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            list(prefix) + self.arguments, stdout=subprocess.PIPE, stderr=self.errors_file,
            stdin=stdin or subprocess.DEVNULL, env=environment, start_new_session=True, preexec_fn=_die_with_parent)
        os.set_blocking(self.child.stdout.fileno(), False)
        self.pending = b""
        self.lines = []
        self.ended = False

    @property
    def pid(self):
        return self.child.pid

    def errors(self):
        self.errors_file.seek(0)
        return self.errors_file.read().decode(errors="replace")

    def _read(self, until):
        left = until - time.monotonic()
        if left <= 0:
            return False
        ready, _, _ = select.select([self.child.stdout], [], [], left)
        if not ready:
            return False
        data = self.child.stdout.read()
        if data == b"":
            self.ended = True
        self.pending += data or b""
        *whole, self.pending = self.pending.split(b"\n")
        self.lines += [line.decode(errors="replace") for line in whole]
        return True

    def wait_line(self, pattern, deadline=DEADLINE):
        """The match of the first line of stdout that `pattern` is found in."""
        until = time.monotonic() + deadline
        seen = 0
        while True:
            for line in self.lines[seen:]:
                match = re.search(pattern, line)
                if match:
                    return match
            seen = len(self.lines)
            if self.ended or not self._read(until):
                raise Late("no line like %r within %.0f s from %s\nstdout: %s\nstderr: %s" % (
                    pattern, deadline, " ".join(self.arguments), "\n".join(self.lines), self.errors()))

    def wait(self, deadline=DEADLINE):
        """The exit status; everything on stdout is read meanwhile."""
        until = time.monotonic() + deadline
        while not self.ended and self._read(until):
            pass
        try:
            return self.child.wait(timeout=max(0.05, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Late("%s did not end within %.0f s\nstdout: %s\nstderr: %s" % (
                " ".join(self.arguments), deadline, "\n".join(self.lines), self.errors())) from None

    def send(self, line):
        self.child.stdin.write((line + "\n").encode())
        self.child.stdin.flush()

    def event(self, kind, deadline=DEADLINE, or_failed=False):
        """The next event of that kind that a demo-worker tells; those before it are dropped."""
        until = time.monotonic() + deadline
        while True:
            while self.lines:
                line = self.lines.pop(0)
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("event") == kind or (or_failed and event.get("event") == "failed"):
                    return event
                if event.get("event") == "failed":
                    raise AssertionError("instead of %r: %s" % (kind, line))
            if self.ended or not self._read(until):
                raise Late("no event %r within %.0f s from %s\nstderr: %s" % (
                    kind, deadline, " ".join(self.arguments), self.errors()))

    def output(self):
        return "\n".join(self.lines + ([self.pending.decode(errors="replace")] if self.pending else []))

    def signal(self, number):
        os.kill(self.child.pid, number)

    def stop(self):
        if self.child.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.child.wait(timeout=60)  # freeing gigabytes takes a while on a busy machine
        if self.child.stdin:
            self.child.stdin.close()
        self.child.stdout.close()
        self.errors_file.close()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="weightlane-test-")
        self.processes = []

    def tearDown(self):
        with contextlib.ExitStack() as stack:  # all are stopped, also when stopping one fails
            for process in self.processes:
                stack.callback(process.stop)
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *arguments, **how):
        process = Process([WEIGHTLANE] + [str(a) for a in arguments], **how)
        self.processes.append(process)
        return process

    def run_to_end(self, *arguments, deadline=DEADLINE, **how):
        process = self.start(*arguments, **how)
        process.status = process.wait(deadline)
        return process

    def server(self, *options, listen="127.0.0.1:0"):
        """A reference server; returns (process, address)."""
        process = self.start("server", "--listen", listen, *options)
        return process, process.wait_line(r"listening on (\S+)").group(1)

    def publish(self, address, path, *options, model="m", version=1):
        process = self.start("publish", "--server", address, "--model", model, "--version", version, *options, path)
        process.wait_line("published")
        return process

    def worker(self, address, role, replica, *options, size="8MiB"):
        """A demo-worker, ready: a trainer or rollout whose every byte at every version is known."""
        process = self.start("demo-worker", "--role", role, "--replica", replica, "--server", address,
                             *(() if "--weights" in options else ("--size", size)), *options, stdin=subprocess.PIPE)
        return process

    def ready_worker(self, *arguments, **how):
        process = self.worker(*arguments, **how)
        process.event("ready")
        return process

    def assert_verified(self, event, version):
        self.assertEqual((event["version"], event["wrong_bytes"], event["hash"]), (version, 0, event["expected"]))

    def assert_one_line(self, process, *parts):
        """Failed, with one line on stderr that says all of `parts`."""
        self.assertNotEqual(process.status, 0, process.output())
        self.assertGreater(process.status, 0, "ended by a signal: " + process.errors())
        lines = [line for line in process.errors().splitlines() if line.startswith("weightlane")]
        self.assertEqual(len(lines), 1, "not one line:\n" + process.errors())
        for part in parts:
            self.assertIn(part, lines[0])

    def assert_same_file(self, a, b):
        with open(a, "rb") as left, open(b, "rb") as right:
            offset = 0
            while True:
                x, y = left.read(1 << 22), right.read(1 << 22)
                self.assertEqual(x == y, True, "%s and %s differ after byte %d" % (a, b, offset))
                if not x:
                    return
                offset += len(x)


def write_safetensors(path, tensors, metadata=None, header=None, seed=1):
    """tensors: [(name, dtype, shape, bytes or a length)]. `header` replaces the true one: a file that lies."""
    entries, at, data = {}, 0, []
    if metadata:
        entries["__metadata__"] = metadata
    noise = random.Random(seed)
    block = noise.randbytes(1 << 20)
    for name, dtype, shape, content in tensors:
        length = content if isinstance(content, int) else len(content)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        data.append(content)
        at += length
    text = header if header is not None else json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8) if header is None else b""
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for content in data:
            if not isinstance(content, int):
                out.write(content)
                continue
            # Every MiB differs: numbered, so that swapped pieces show.
            for number in range(0, content, len(block)):
                piece = struct.pack("<QQ", seed, number) + block[16:]
                out.write(piece[:min(len(block), content - number)])
    return path


def small_model(path, seed=1, bytes_total=4 << 20):
    small = random.Random(seed).randbytes(4096)
    return write_safetensors(path, [
        ("norm", "F32", [1024], small), ("empty", "F32", [0], b""),
        ("w", "U8", [bytes_total], bytes_total), ("tail", "U8", [3], b"abc")], {"format": "pt"}, seed=seed)


def resident_kib(pid):
    with open("/proc/%d/status" % pid) as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def connect(address, timeout=5):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)


def listening_ports(pid):
    """TCP ports that this process listens on."""
    inodes = set()
    for name in os.listdir("/proc/%d/fd" % pid):
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, name))
        except OSError:
            continue
        match = re.match(r"socket:\[(\d+)\]", target)
        if match:
            inodes.add(match.group(1))
    ports = set()
    for table in ("tcp", "tcp6"):
        with open("/proc/%d/net/%s" % (pid, table)) as lines:
            for line in lines.read().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return sorted(ports)


def main(module="__main__"):
    if not os.path.exists(WEIGHTLANE):
        print("SKIPPED: no %s; build it first" % WEIGHTLANE)
        sys.exit(SKIPPED)
    unittest.main(module=module, verbosity=2)
