#!/usr/bin/env python3
"""Goal: the demo moves real weights, survives chaos, leaves no process behind, and fails when anything is wrong.

Method: the real binary, with a real model's safetensors file where it can be had (real_model.py).
"""
import os
import re
import signal
import subprocess
import time
import unittest

import harness
import real_model
from harness import Case


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as children:
        return [int(word) for word in children.read().split()]


class Demo(Case):
    def demo(self, *options, deadline=150):
        process = self.run_to_end("demo", *options, deadline=deadline)
        self.assertEqual(process.status, 0, process.output() + "\n" + process.errors())
        return process.output()

    def test_made_weights(self):
        output = self.demo("--size", "32MiB", "--steps", "3", "--rollouts", "2")
        self.assertIn("every byte verified: 12 updates", output)

    def test_over_tcp_with_checksums(self):
        output = self.demo("--size", "32MiB", "--steps", "2", "--rollouts", "2", "--transport", "tcp", "--checksums")
        self.assertIn("(tcp)", output)
        self.assertIn("every byte verified: 8 updates", output)

    def test_chaos_with_a_standby(self):
        output = self.demo("--size", "64MiB", "--steps", "3", "--rollouts", "2", "--chaos", "--servers", "2")
        self.assertIn("kill -9 the first server", output)
        self.assertIn("every byte verified: 12 updates", output)

    def test_chaos(self):
        for transport in ("auto", "tcp"):
            output = self.demo("--size", "64MiB", "--steps", "3", "--chaos", "--transport", transport)
            self.assertEqual(len(re.findall(r"s  kill -9 ", output)), 2, output)
            self.assertIn("started again as a new process", output)
            self.assertIn("every byte verified: 18 updates", output)

    def test_interrupt_stops_every_process(self):
        process = self.start("demo", "--size", "64MiB", "--steps", "10000", "--transport", "tcp")
        process.wait_line("rollout-0/0 updated to v1")
        children = children_of(process.pid)
        self.assertEqual(len(children), 1 + (1 + 3) * 2)
        process.signal(signal.SIGINT)
        self.assertNotEqual(process.wait(60), 0)
        self.assertEqual([pid for pid in children if os.path.exists("/proc/%d" % pid)], [])

    def test_kill_takes_the_children_along(self):
        process = self.start("demo", "--size", "64MiB", "--steps", "10000")
        process.wait_line("rollout-0/0 updated to v1")
        children = children_of(process.pid)
        process.signal(signal.SIGKILL)
        process.child.wait(timeout=10)
        until = time.monotonic() + 20
        while any(os.path.exists("/proc/%d" % pid) for pid in children):
            self.assertLess(time.monotonic(), until, "children outlived the demo")
            time.sleep(0.02)


class RealWeights(Case):
    def setUp(self):
        super().setUp()
        self.weights, why = real_model.path()
        if not self.weights:
            print("\n*** REAL WEIGHTS CAN'T BE HAD, this test is skipped: " + why, flush=True)
            self.skipTest(why)

    def test_demo_moves_a_real_model(self):
        process = self.run_to_end("demo", "--weights", self.weights, "--steps", "2", "--rollouts", "2", "--chaos", deadline=150)
        self.assertEqual(process.status, 0, process.output() + "\n" + process.errors())
        self.assertIn("every byte verified", process.output())

    def test_publish_and_pull_give_the_same_file(self):
        _, address = self.server()
        self.publish(address, self.weights)
        process = self.run_to_end("pull", "--server", address, "--model", "m", "--out", self.path("out.safetensors"))
        self.assertEqual(process.status, 0, process.errors())
        # Byte for byte but for the header's order and padding, which pull makes canonical.
        with open(self.weights, "rb") as a, open(self.path("out.safetensors"), "rb") as b:
            left, right = a.read(), b.read()
        sizes = int.from_bytes(left[:8], "little"), int.from_bytes(right[:8], "little")
        self.assertEqual(left[8 + sizes[0]:] == right[8 + sizes[1]:], True)


if __name__ == "__main__":
    harness.main()
