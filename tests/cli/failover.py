#!/usr/bin/env python3
"""Goal: reference servers die, come back empty, stand still or are killed one after the other, and the job goes on (P9):
what was published is seen again within a heartbeat of the first contact, calls under way end well, and every byte is
right.

Method: real processes on loopback; servers get kill -9 and SIGSTOP/SIGCONT. Trainers and rollouts are demo-workers, whose
every byte at every version is known.
"""
import json
import os
import sys
import time
from signal import SIGCONT, SIGKILL, SIGSTOP

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

QUICK = ("--lease", "3s", "--heartbeat", "300ms")


class Failover(harness.Case):
    def listed(self, address):
        """What `ls` shows there: 'replica:version:state' of each line; nothing when nobody answers."""
        shown = self.run_to_end("ls", "--server", address, "--json")
        if shown.status != 0:
            return []
        rows = [json.loads(line) for line in shown.output().splitlines() if line.startswith("{")]
        return ["%s:%s:%s" % (row.get("replica"), row.get("version"), row.get("state")) for row in rows]

    def wait_listed(self, address, line, deadline=30):
        until = time.monotonic() + deadline
        while time.monotonic() < until:
            if line in self.listed(address):
                return
        self.fail("no %r at %s within %d s; it shows %s" % (line, address, deadline, self.listed(address)))

    def publish(self, trainer, version):
        trainer.send("publish %d" % version)
        trainer.event("published")

    def update(self, rollouts, version):
        for rollout in rollouts:
            rollout.send("update %d" % version)
        for rollout in rollouts:
            self.assert_verified(rollout.event("updated"), version)

    def test_report_10_a_server_that_restarts_empty_learns_everything_again(self):
        """modelexpress PR #658, Mooncake #2246: kill -9 the server, start it again; all are back."""
        server, address = self.server(*QUICK)
        trainer = self.ready_worker(address, "trainer", "t0")
        rollouts = [self.ready_worker(address, "rollout", "r%d" % i) for i in range(2)]
        self.publish(trainer, 1)
        self.update(rollouts, 1)
        server.signal(SIGKILL)
        server.child.wait(timeout=10)
        server, again = self.server(*QUICK, listen=address)
        self.assertEqual(address, again)
        for replica in ("t0", "r0", "r1"):
            self.wait_listed(address, "%s:1:complete" % replica)
        late = self.ready_worker(address, "rollout", "late")
        self.update([late], 1)
        self.publish(trainer, 2)
        self.update(rollouts + [late], 2)

    def test_the_standby_takes_over_and_the_first_gets_them_back(self):
        first, a = self.server(*QUICK)
        second, b = self.server(*QUICK)
        both = a + "," + b
        trainer = self.ready_worker(both, "trainer", "t0")
        rollouts = [self.ready_worker(both, "rollout", "r%d" % i) for i in range(2)]
        self.publish(trainer, 1)
        self.update(rollouts, 1)
        self.assertEqual(self.listed(b), [])
        first.signal(SIGKILL)
        first.child.wait(timeout=10)
        self.update(rollouts[:1], 1)  # holds it already, and asks the standby
        for replica in ("t0", "r0", "r1"):
            self.wait_listed(b, "%s:1:complete" % replica)
        self.publish(trainer, 2)
        self.update(rollouts, 2)
        # The first one is back: all go there, and the standby may die.
        first, _ = self.server(*QUICK, listen=a)
        for replica in ("t0", "r0", "r1"):
            self.wait_listed(a, "%s:2:complete" % replica)
        second.signal(SIGKILL)
        second.child.wait(timeout=10)
        self.publish(trainer, 3)
        self.update(rollouts, 3)

    def test_a_server_that_stands_still_is_left_and_found_again(self):
        first, a = self.server(*QUICK)
        _, b = self.server(*QUICK)
        both = a + "," + b
        trainer = self.ready_worker(both, "trainer", "t0")
        rollouts = [self.ready_worker(both, "rollout", "r%d" % i) for i in range(2)]
        self.publish(trainer, 1)
        first.signal(SIGSTOP)
        self.update(rollouts, 1)
        self.publish(trainer, 2)
        self.update(rollouts, 2)
        self.wait_listed(b, "t0:2:complete")
        first.signal(SIGCONT)
        for replica in ("t0", "r0", "r1"):
            self.wait_listed(a, "%s:2:complete" % replica)
        self.publish(trainer, 3)
        self.update(rollouts, 3)

    def test_killed_while_shards_read(self):
        """The server dies in the middle of a transfer: the READs go on, and the call ends at the standby."""
        first, a = self.server(*QUICK)
        _, b = self.server(*QUICK)
        both = a + "," + b
        size = "256MiB"
        trainer = self.ready_worker(both, "trainer", "t0", "--transport", "tcp", size=size)
        rollouts = [self.ready_worker(both, "rollout", "r%d" % i, "--transport", "tcp", size=size) for i in range(2)]
        self.publish(trainer, 1)
        for rollout in rollouts:
            rollout.send("update 1")
        rollouts[0].event("progress")
        first.signal(SIGKILL)
        for rollout in rollouts:
            self.assert_verified(rollout.event("updated"), 1)
        self.publish(trainer, 2)
        self.update(rollouts, 2)

    def test_no_server_at_all_ends_a_call_in_bounded_time(self):
        first, a = self.server(*QUICK)
        second, b = self.server(*QUICK)
        rollout = self.ready_worker(a + "," + b, "rollout", "r0")
        for server in (first, second):
            server.signal(SIGKILL)
            server.child.wait(timeout=10)
        rollout.send("update 1")
        failed = rollout.event("failed", deadline=60)
        self.assertEqual(failed["code"], "ServerLost")

    def test_a_wrong_list_is_refused_in_one_line(self):
        for text in ("127.0.0.1:7400,", ",", "127.0.0.1:7400,nonsense"):
            refused = self.run_to_end("ls", "--server", text)
            self.assertNotEqual(refused.status, 0)
            self.assertEqual(len(refused.errors().strip().splitlines()), 1, refused.errors())


if __name__ == "__main__":
    harness.main()
