#!/usr/bin/env python3
"""Goal: whatever a person or a stranger gives the binary, it answers in one line that names the thing and says what
would be right, exits non-zero, leaves nothing half written, and a process that serves goes on serving.

Method: the real binary with wrong arguments, wrong files, wrong addresses, full disks, and garbage on its ports.
"""
import os
import random
import socket
import subprocess
import time
import unittest

import harness
from harness import Case, connect, listening_ports, resident_kib, small_model, write_safetensors

RSS_GROWTH_KIB = 24 << 10  # what garbage may cost a process for good


class WrongArguments(Case):
    def check(self, arguments, *parts, status=2):
        process = self.run_to_end(*arguments, deadline=20)
        self.assert_one_line(process, *parts)
        self.assertEqual(process.status, status, process.errors())

    def test_commands_and_options(self):
        model = small_model(self.path("a.safetensors"))
        self.check(["frobnicate"], "no command 'frobnicate'", "publish")
        self.check([], "no command", "publish")
        self.check(["server"], "--listen is required")
        self.check(["server", "--listen", "127.0.0.1:0", "--lease", "soon"], "'soon' is no duration", "500ms")
        self.check(["ls"], "--server is required")
        self.check(["pull", "--server", "127.0.0.1:1", "--model", "m"], "--out is required")
        self.check(["pull", "--server", "127.0.0.1:1", "--model", "m", "--out", self.path("x"), "--version", "newest"],
                   "'newest' is no version", "latest-2")
        self.check(["pull", "--server", "127.0.0.1:1", "--model", "a b", "--out", self.path("x")], "model", "without blanks")
        self.check(["publish", "--server", "127.0.0.1:1", "--model", "m", "--version", "latest", model], "--version")
        self.check(["publish", "--server", "127.0.0.1:1", "--model", "m", "--version", "-1", model], "--version")
        self.check(["publish", "--server", "127.0.0.1:1", "--model", "m", "--version", "1", "--port-range", "9-8", model],
                   "--port-range '9-8'", "7500-7599")
        self.check(["demo", "--size", "lots"], "'lots' is no size", "64MiB")
        self.check(["demo", "--size", "-5"], "--size")
        self.check(["demo", "--transport", "pigeon"], "pigeon")
        self.check(["demo", "--rollouts", "0"], "--rollouts")
        self.check(["demo", "--chaos", "--steps", "1"], "--steps must be 2 or more")
        self.check(["demo", "--weights", self.path("absent")], self.path("absent"), "No such file")
        self.check(["demo", "--shards", "9", "--weights", model], "4 tensors", "--shards")

    def test_shard_index_out_of_range(self):
        model = small_model(self.path("a.safetensors"))
        self.check(["publish", "--server", "127.0.0.1:1", "--model", "m", "--version", "1", "--shards", "2", "--shard", "2",
                    model], "--shard 2", "0 to 1")

    def test_every_command_has_help_with_an_example(self):
        for command in ("server", "publish", "pull", "ls", "watch", "wait", "rewind", "demo", "bench"):
            process = self.run_to_end(command, "--help", deadline=20)
            self.assertEqual(process.status, 0)
            self.assertIn("Example:", process.output(), command)
            self.assertIn("weightlane " + command, process.output(), command)


class WrongAddresses(Case):
    def test_not_an_address(self):
        for address in ("nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:http", ":", "2605:340:cd51::1:7400", "[::1]", "unix:"):
            process = self.run_to_end("ls", "--server", address, deadline=20)
            self.assert_one_line(process, address)
            process = self.run_to_end("server", "--listen", address, deadline=20)
            self.assert_one_line(process, address)

    def test_server_that_is_not_there(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
        model = small_model(self.path("a.safetensors"))
        for arguments in (["ls"], ["watch"], ["publish", "--model", "m", "--version", "1", model],
                          ["pull", "--model", "m", "--out", self.path("out")]):
            process = self.run_to_end(arguments[0], "--server", address, *arguments[1:], deadline=40)
            self.assert_one_line(process, address)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_port_in_use(self):
        _, address = self.server()
        process = self.run_to_end("server", "--listen", address, deadline=20)
        self.assert_one_line(process, address.rsplit(":", 1)[1], "in use")


class WrongModels(Case):
    def setUp(self):
        super().setUp()
        _, self.address = self.server("--lease", "2s", "--heartbeat", "300ms")
        self.model = small_model(self.path("a.safetensors"))

    def pull(self, *options, out="out.safetensors", model="m", deadline=60):
        return self.run_to_end("pull", "--server", self.address, "--model", model, "--out", self.path(out), *options,
                               deadline=deadline)

    def assert_nothing_written(self, name="out.safetensors"):
        self.assertEqual([f for f in os.listdir(self.folder) if f.startswith(name)], [])

    def test_round_trip_is_exact(self):
        self.publish(self.address, self.model, version=7)
        for version in ("7", "latest"):
            self.assertEqual(self.pull("--version", version).status, 0)
            self.assert_same_file(self.model, self.path("out.safetensors"))

    def test_two_shards_of_one_replica(self):
        other = write_safetensors(self.path("b.safetensors"), [("w", "BF16", [300], 600)], seed=3)
        self.publish(self.address, self.model, "--shards", 2, "--shard", 0, "--replica", "r")
        self.publish(self.address, other, "--shards", 2, "--shard", 1, "--replica", "r")
        process = self.pull()
        self.assertEqual(process.status, 0, process.errors())
        self.assert_same_file(self.model, self.path("out-00001-of-00002.safetensors"))
        self.assert_same_file(other, self.path("out-00002-of-00002.safetensors"))

    def test_version_that_nobody_has(self):
        self.publish(self.address, self.model, version=7)
        process = self.pull("--version", "9", "--wait", "1s")
        self.assert_one_line(process, "version 9", "'m'", "7")
        process = self.pull("--version", "latest-3", "--wait", "1s")
        self.assert_one_line(process, "latest-3", "7")
        process = self.pull("--wait", "1s", model="other")
        self.assert_one_line(process, "'other'")
        self.assert_nothing_written()

    def test_layout_that_differs(self):
        self.publish(self.address, self.model, "--replica", "right")
        other = write_safetensors(self.path("b.safetensors"), [("w", "F32", [8], 32)])
        process = self.pull("--like", other)
        self.assert_one_line(process, "differs", "name, dtype, shape and order")
        self.assert_nothing_written()
        process = self.run_to_end("publish", "--server", self.address, "--model", "m", "--version", 1, "--replica",
                                  "wrong", other)
        self.assert_one_line(process, "differs", "m/right", "m/wrong")

    def test_second_open_of_a_live_shard(self):
        self.publish(self.address, self.model, "--replica", "r")
        begin = time.monotonic()
        process = self.run_to_end("publish", "--server", self.address, "--model", "m", "--version", 2, "--replica", "r",
                                  self.model)
        self.assert_one_line(process, "r", "open")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(self.pull("--version", "1").status, 0, "the first one must go on")

    def test_broken_files(self):
        with open(self.model, "rb") as file:
            sound = file.read()
        cases = {"empty": b"", "short": sound[:5], "cut": sound[:-1], "longer": sound + b"x", "text": b"hello world, this is text",
                 "zeros": bytes(4096), "header": (10 ** 15).to_bytes(8, "little") + sound[8:],
                 "noise": random.Random(5).randbytes(4096)}
        for name, content in cases.items():
            path = self.path(name + ".safetensors")
            with open(path, "wb") as file:
                file.write(content)
            process = self.run_to_end("publish", "--server", self.address, "--model", "m", "--version", 1, path)
            self.assert_one_line(process, path)
        lies = {
            "overlap": b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}',
            "beyond": b'{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}',
            "shape": b'{"a":{"dtype":"F32","shape":[7],"data_offsets":[0,12]}}',
        }
        for name, header in lies.items():
            path = write_safetensors(self.path(name + ".safetensors"), [("x", "U8", [12], 12)], header=header)
            process = self.run_to_end("publish", "--server", self.address, "--model", "m", "--version", 1, path)
            self.assert_one_line(process, path)
        process = self.run_to_end("ls", "--server", self.address)
        self.assertEqual((process.status, process.output().count("\n")), (0, 0), "nothing may be visible: " + process.output())

    def test_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("mounting a small tmpfs needs root")
        try:
            self.publish(self.address, self.model)
            process = self.pull(out="disk/out.safetensors")
            self.assert_one_line(process, disk, "space")
            self.assertEqual(os.listdir(disk), [])
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_output_that_cannot_be(self):
        self.publish(self.address, self.model)
        for out, part in (("no/such/folder/out", "folder"), (".", "regular file")):
            self.assert_one_line(self.pull(out=out), part)


class Garbage(Case):
    """Noise on every port that a process listens on: the connection goes, the process stays, its memory too."""

    def noise(self, port):
        random_bytes = random.Random(port)
        streams = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
                   b"\xff" * 4096, bytes(4096), b"", b"\x00"]
        for number in range(200):
            data = streams[number % len(streams)] if number % 2 else random_bytes.randbytes(random_bytes.randrange(1, 65536))
            try:
                with connect("127.0.0.1:%d" % port) as stranger:
                    stranger.settimeout(0.02)
                    stranger.sendall(data)
                    if number % 3 == 0:
                        stranger.recv(4096)
            except (OSError, socket.timeout):
                pass

    def hammer(self, process):
        ports = listening_ports(process.pid)
        self.assertTrue(ports)
        for port in ports:
            self.noise(port)
        before = resident_kib(process.pid)
        for port in ports:
            self.noise(port)
            self.noise(port)
        self.assertIsNone(process.child.poll(), "it died: " + process.errors())
        self.assertLess(resident_kib(process.pid) - before, RSS_GROWTH_KIB)

    def test_server_and_source_live_on(self):
        server, address = self.server("--metrics", "127.0.0.1:0")
        model = small_model(self.path("a.safetensors"))
        source = self.publish(address, model, "--transport", "tcp")
        self.hammer(server)
        self.hammer(source)
        process = self.run_to_end("pull", "--server", address, "--model", "m", "--transport", "tcp", "--out", self.path("out"))
        self.assertEqual(process.status, 0, process.errors())
        self.assert_same_file(model, self.path("out"))

    def test_connections_that_say_nothing(self):
        server, address = self.server()
        model = small_model(self.path("a.safetensors"))
        source = self.publish(address, model, "--transport", "tcp")
        silent = [connect("127.0.0.1:%d" % port) for p in (server, source) for port in listening_ports(p.pid) for _ in range(50)]
        try:
            process = self.run_to_end("pull", "--server", address, "--model", "m", "--transport", "tcp", "--out", self.path("out"))
            self.assertEqual(process.status, 0, process.errors())
        finally:
            for stranger in silent:
                stranger.close()


class Stopping(Case):
    def test_sigterm_ends_with_success(self):
        server, address = self.server()
        source = self.publish(address, small_model(self.path("a.safetensors")))
        source.signal(15)
        self.assertEqual(source.wait(20), 0, source.errors())
        server.signal(15)
        self.assertEqual(server.wait(20), 0, server.errors())

    def test_publish_until_copies(self):
        _, address = self.server()
        model = small_model(self.path("a.safetensors"))
        source = self.start("publish", "--server", address, "--model", "m", "--version", 1, "--until-copies", 1, model)
        source.wait_line("published")
        reader = self.publish_by_pull(address)
        self.assertEqual(source.wait(30), 0, source.errors())
        reader.signal(15)
        self.assertEqual(reader.wait(20), 0, reader.errors())

    def publish_by_pull(self, address):
        process = self.start("pull", "--server", address, "--model", "m", "--out", self.path("out"), "--serve")
        process.wait_line("received")
        return process


if __name__ == "__main__":
    harness.main()
