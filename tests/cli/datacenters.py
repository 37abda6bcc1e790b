"""Goal: with --datacenter a version crosses once, and who comes later reads from a neighbour (P8).

Method: the real binary on loopback; the server's metrics count what was carried into a datacenter.
"""
import json
import re
import urllib.request

import harness
from harness import Case, small_model


class Datacenters(Case):
    def setUp(self):
        super().setUp()
        self.process, self.address = self.server("--metrics", "127.0.0.1:0", "--heartbeat", "200ms", "--lease", "1s")
        self.model = small_model(self.path("a.safetensors"))

    def metric(self, name):
        """Of model m, by datacenter."""
        port = next(p for p in harness.listening_ports(self.process.pid) if not self.address.endswith(":%d" % p))
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10) as page:
            text = page.read().decode()
        return {where: float(value) for where, value in re.findall(r'^%s\{datacenter="(\w*)",model="m"\} (\S+)' % name, text, re.M)}

    def pull(self, replica, datacenter, *options):
        process = self.run_to_end("pull", "--server", self.address, "--model", "m", "--json", "--replica", replica,
                                  "--datacenter", datacenter, "--out", self.path(replica), *options)
        self.assertEqual(process.status, 0, process.errors())
        self.assert_same_file(self.model, self.path(replica))
        return json.loads(process.output().strip().splitlines()[-1])["source"]

    def test_a_version_crosses_once(self):
        self.publish(self.address, self.model, "--datacenter", "near", "--replica", "t0")
        seeder = self.start("pull", "--server", self.address, "--model", "m", "--replica", "f0", "--datacenter", "far",
                            "--out", self.path("f0"), "--serve")
        seeder.wait_line("received")
        self.assertIn("f0", self.pull("f1", "far"))
        self.assertIn("t0", self.pull("n1", "near"))
        self.assertEqual(self.metric("weightlane_server_seeds_total"), {"far": 1})
        listed = self.run_to_end("ls", "--server", self.address, "--json")
        places = {row["replica"]: row["datacenter"] for row in map(json.loads, listed.output().strip().splitlines())}
        self.assertEqual((places["t0"], places["f0"]), ("near", "far"))
        seeder.stop()  # killed: the server misses it, and the next one carries the version in again
        self.assertIn("t0", self.pull("f2", "far"))
        self.assertEqual(self.metric("weightlane_server_seeds_total"), {"far": 2})

    def test_one_replica_in_two_datacenters_is_refused(self):
        self.publish(self.address, self.model, "--datacenter", "near", "--replica", "t0")
        process = self.run_to_end("publish", "--server", self.address, "--model", "m", "--version", 1, "--replica", "t0",
                                  "--datacenter", "far", self.model)
        self.assert_one_line(process, "'near'", "'far'")


if __name__ == "__main__":
    harness.main()
