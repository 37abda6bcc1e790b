#!/usr/bin/env python3
"""Goal: a pull that is stopped leaves nothing behind, and one that may not read another process takes TCP and says why.

Method: real processes on loopback. The source is stopped (SIGSTOP) or slow enough that the pull is half-way for sure. A
container that forbids process_vm_readv is played by a seccomp filter, which needs no root.
"""
import json
import os
import re
import signal
import sys
import time
import unittest

from harness import Case, write_safetensors

# Runs argv[1:] where process_vm_readv is EPERM, as Docker's default profile has it (and yama, for strangers).
FORBIDDEN = r"""
import ctypes, os, platform, struct, sys
number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
rules = b"".join(struct.pack("HBBI", *rule) for rule in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)))
memory = ctypes.create_string_buffer(rules)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""


class PullEnds(Case):
    def weights(self, size):
        path = self.path("weights.safetensors")
        write_safetensors(path, [("w%d" % i, "U8", [size // 4], size // 4) for i in range(4)])
        return path

    def replicas(self, address):
        listed = self.run_to_end("ls", "--server", address, "--json")
        self.assertEqual(listed.status, 0, listed.errors())
        return listed.output()

    def who_waits_for_whom(self, server, pull):
        """SIGUSR1: both the one who waits and the server name whom it waits for."""
        for process, pattern in ((server, r"waits: replicate \d+ of m/pulled: shard 0 (reads from m/publish-|waits for a source)"),
                                 (pull, r"waits: .*m/pulled.*: replicate \d+ for \d+ ms, (reads from publish-|connects to publish-|"
                                        r"waits for the reference server)")):
            process.signal(signal.SIGUSR1)
            until = time.monotonic() + 10
            while not re.search(pattern, process.errors()):
                self.assertLess(time.monotonic(), until, "no line like %r in: %s" % (pattern, process.errors()))
                time.sleep(0.02)

    def stopped_half_way(self, number):
        server, address = self.server("--lease", "60s", "--heartbeat", "250ms")
        source = self.publish(address, self.weights(64 << 20), "--transport", "tcp")
        out = self.path("out.safetensors")
        pull = self.start("pull", "--server", address, "--model", "m", "--out", out, "--transport", "tcp", "--replica",
                          "pulled", "--window", "64KiB")
        until = time.monotonic() + 30
        while '"pulled"' not in self.replicas(address):  # it receives, or soon will
            self.assertLess(time.monotonic(), until)
            self.assertIsNone(pull.child.poll(), "it ended before it could be stopped")
        source.signal(signal.SIGSTOP)  # nothing more comes from it
        self.who_waits_for_whom(server, pull)
        pull.signal(number)
        began = time.monotonic()
        pull.status = pull.wait(30)
        source.signal(signal.SIGCONT)
        self.assertEqual(pull.status, 130)
        self.assertIn("stopped; nothing was written", pull.errors())
        self.assertLess(time.monotonic() - began, 20, "stopping has its bound")
        self.assertNotIn('"pulled"', self.replicas(address), "the server forgets it at once, not by the lease of 60 s")
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("out")], [])
        again = self.run_to_end("pull", "--server", address, "--model", "m", "--out", out, "--replica", "pulled")
        self.assertEqual(again.status, 0, again.errors())
        self.assert_same_file(self.path("weights.safetensors"), out)

    def test_interrupted(self):
        self.stopped_half_way(signal.SIGINT)

    def test_terminated(self):
        self.stopped_half_way(signal.SIGTERM)

    def test_who_may_not_read_another_process_takes_tcp_and_says_why(self):
        _, address = self.server()
        self.publish(address, self.weights(8 << 20))
        for prefix, transport in (([], "same-host"), ([sys.executable, "-c", FORBIDDEN], "tcp")):
            out = self.path("out-%s.safetensors" % transport)
            pull = self.run_to_end("pull", "--server", address, "--model", "m", "--out", out, "--json", "--verbose",
                                   prefix=prefix)
            self.assertEqual(pull.status, 0, pull.errors())
            self.assertIn("(%s)" % transport, json.loads(pull.lines[-1])["source"])
            chosen = [line for line in pull.errors().splitlines() if "transport.chosen" in line]
            self.assertTrue(chosen, pull.errors())
            for line in chosen:
                self.assertIn("transport=" + transport, line)
                if transport == "tcp":
                    self.assertRegex(line, "same-host: .*process_vm_readv: Operation not permitted")
            self.assert_same_file(self.path("weights.safetensors"), out)


if __name__ == "__main__":
    unittest.main()
