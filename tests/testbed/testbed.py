"""Several hosts on one machine: network namespaces with rate-limited NICs.

    h0 --eth0=== rate ===port-- [ near switch ] === far rate === [ far switch ] --port=== rate ===eth0-- h3

A host is a namespace with one veth NIC; a switch is a bridge in a namespace of its own, so nothing of the machine's own
network is touched. `tc tbf` shapes both ends of each NIC (what the host sends, and what the switch sends to it) with a
small burst; the link between the switches likewise: behind it is the far datacenter.

The burst is 128 KiB, 2.6 ms at 400 Mbit/s, because a frame that TCP leaves for the NIC to cut (up to 64 KiB) passes tbf
whole only when it fits the burst. A smaller one makes tbf cut it in software, which no real NIC does: with a burst of
32 KiB and 5 hosts that alone keeps two cores busy, and the processor, not the NICs, is what gets measured.

Names are wlt-<pid of the maker>-<host>. clean() removes them, also when an exception or a signal ends the test; what a
killed test left is removed by the next one, because its pid is in the name. Needs root.
"""
import os
import re
import signal
import subprocess

PREFIX = "wlt-"


def privileged():
    if os.geteuid() != 0:
        return False
    name = "%s%d-try" % (PREFIX, os.getpid())
    made = subprocess.run(["ip", "netns", "add", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*words, namespace=None):
    subprocess.run(["ip"] + (["-n", namespace] if namespace else []) + [str(w) for w in words], check=True, timeout=30)


def remove_leftovers():
    """Namespaces of tests that are no more."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name, pid in re.findall(r"^(%s(\d+)-\S+)" % PREFIX, names, re.M):
        if not os.path.exists("/proc/" + pid):
            subprocess.run(["ip", "netns", "del", name], check=False)


class Testbed:
    def __init__(self, hosts, rate="400mbit", far=(), far_rate="100mbit", burst="128kb", latency="50ms"):
        """hosts: names. far: those of them that live behind the slow link."""
        self.hosts = list(hosts)
        self.burst = burst
        self.latency = latency
        self.namespaces = []
        self.address = {}
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        try:
            remove_leftovers()
            switches = {False: self._namespace("near")}
            self._bridge(switches[False])
            if far:
                switches[True] = self._namespace("far")
                self._bridge(switches[True])
                self._cable(switches[False], "far", switches[True], "near", far_rate)
                _ip("link", "set", "far", "master", "br0", namespace=switches[False])
                _ip("link", "set", "near", "master", "br0", namespace=switches[True])
            for number, host in enumerate(self.hosts, 1):
                self._host(host, number, switches[host in far], rate)
        except BaseException:
            self.clean()
            raise

    def _namespace(self, name):
        full = "%s%d-%s" % (PREFIX, os.getpid(), name)
        _ip("netns", "add", full)
        self.namespaces.append(full)
        _ip("link", "set", "lo", "up", namespace=full)
        return full

    def _bridge(self, namespace):
        _ip("link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0", namespace=namespace)
        _ip("link", "set", "br0", "up", namespace=namespace)

    def _cable(self, left, left_name, right, right_name, rate):
        _ip("link", "add", left_name, "type", "veth", "peer", "name", right_name, "netns", right, namespace=left)
        for namespace, device in ((left, left_name), (right, right_name)):
            subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst",
                            self.burst, "latency", self.latency], check=True, timeout=30)
            _ip("link", "set", device, "up", namespace=namespace)

    def _host(self, host, number, switch, rate):
        namespace = self._namespace(host)
        port = "p%d" % number
        self._cable(namespace, "eth0", switch, port, rate)
        _ip("link", "set", port, "master", "br0", namespace=switch)
        self.address[host] = "10.77.0.%d" % number
        _ip("addr", "add", self.address[host] + "/24", "dev", "eth0", namespace=namespace)

    def inside(self, host):
        """The words before a command that make it run on that host."""
        return ["ip", "netns", "exec", "%s%d-%s" % (PREFIX, os.getpid(), host)]

    def clean(self):
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=False, timeout=30)
        self.namespaces = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clean()
