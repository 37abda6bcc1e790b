#!/usr/bin/env python3
"""Goal: retention as people use it (P5): a version that a running process retains outlives the process that published
it, in another's host memory, byte for byte; budgets and spot machines; and rewind and wait.

Method: the real binary on loopback; processes are ended by SIGTERM, as an orchestrator would.
"""
import json
import signal

import harness
from harness import Case, small_model


class Retention(Case):
    def listed(self, address, *options):
        """The rows of `ls --json`."""
        process = self.run_to_end("ls", "--server", address, "--json", *options)
        self.assertEqual(process.status, 0, process.errors())
        return [json.loads(line) for line in process.lines]

    def end(self, process):
        process.signal(signal.SIGTERM)
        self.assertEqual(process.wait(), 0, process.errors())

    def handed_over(self, *options):
        """Version 1 is published and its publisher ended, while another process retains it; what is listed then."""
        _, address = self.server()
        first = small_model(self.path("first.safetensors"))
        second = small_model(self.path("second.safetensors"), seed=2)
        keeper = self.publish(address, second, "--replica", "keeper", "--retain", 2, version=2)
        publisher = self.publish(address, first, "--replica", "publisher", "--hand-over", "20s", *options)
        self.assertEqual([row["retained"] for row in self.listed(address)], [True, True])
        self.end(publisher)
        rows = self.listed(address)
        self.assertEqual([(row["version"], row["offload"], row["state"]) for row in rows],
                         [(2, False, "complete"), (1, True, "complete")], rows)
        self.assertTrue(rows[1]["replica"].startswith("keeper~v1~"), rows)
        pulled = self.path("pulled.safetensors")
        pull = self.run_to_end("pull", "--server", address, "--model", "m", "--version", 1, "--out", pulled)
        self.assertEqual(pull.status, 0, pull.errors())
        with open(first, "rb") as was, open(pulled, "rb") as now:
            self.assertEqual(was.read(), now.read())
        self.end(keeper)  # it retains no more: nothing is left
        self.assertEqual(self.listed(address), [])

    def test_a_retained_version_outlives_its_publisher(self):
        self.handed_over()

    def test_a_spot_machine_hands_over_at_its_notice(self):
        self.handed_over("--spot")

    def test_without_room_it_is_lost_at_the_deadline_and_not_before(self):
        _, address = self.server()
        keeper = self.publish(address, small_model(self.path("b.safetensors"), seed=2), "--replica", "keeper",
                              "--retain", 2, "--offload-limit", "0", version=2)
        publisher = self.publish(address, small_model(self.path("a.safetensors")), "--hand-over", "1s", "--spot")
        self.end(publisher)
        self.assertEqual([row["version"] for row in self.listed(address)], [2])
        self.end(keeper)

    def test_nobody_retains_it(self):
        _, address = self.server()
        publisher = self.publish(address, small_model(self.path("a.safetensors")), "--retain", 3)
        self.end(publisher)  # its own wish ends with it
        self.assertEqual(self.listed(address), [])


class Rewind(Case):
    def test_rewind_and_wait(self):
        _, address = self.server()
        at = ("--server", address, "--model", "m")
        late = self.run_to_end("wait", *at, "--timeout", "200ms")
        self.assert_one_line(late, "version latest of model m is not there")
        refused = self.run_to_end("rewind", *at, "--expected", 1)
        self.assert_one_line(refused, "nobody has model m open")
        model = small_model(self.path("a.safetensors"))
        old = self.publish(address, model, "--replica", "a", version=9)
        there = self.run_to_end("wait", *at, "--json")
        self.assertEqual(json.loads(there.lines[0]), {"model": "m", "version": 9, "generation": 1})
        refused = self.run_to_end("rewind", *at, "--expected", 4)
        self.assert_one_line(refused, "generation 1, not 4")
        done = self.run_to_end("rewind", *at, "--expected", 1)
        self.assertEqual((done.status, done.lines), (0, ["m is at generation 2"]))
        waiting = self.start("wait", *at, "--timeout", "30s")
        self.publish(address, model, "--replica", "b", version=4)
        self.assertEqual((waiting.wait(), waiting.lines), (0, ["4"]))
        # The old one is still there by its number.
        pull = self.run_to_end("pull", *at, "--version", 9, "--out", self.path("nine.safetensors"))
        self.assertEqual(pull.status, 0, pull.errors())
        rows = self.run_to_end("ls", "--server", address)
        self.assertRegex(rows.output(), r"m +4@2 ")
        old.signal(signal.SIGTERM)
        self.assertEqual(old.wait(), 0, old.errors())


if __name__ == "__main__":
    harness.main()
