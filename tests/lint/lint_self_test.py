#!/usr/bin/env python3
"""Goal: a lint that cannot fail is a defect, so each rule is shown mistakes it must find and
harmless neighbours of them that it must not.

Method: every case is a file planted in a folder of its own; the lint runs over that folder as it
does over the tree.
"""
import os
import sys
import tempfile

import lint

HEAD = "// What this file is about.\n"
UNFINISHED = [
    "// TO" + "DO: later",
    "GTEST_" + "SKIP();",
    "TEST(A, DISA" + "BLED_B) {}",
    "// FIX" + "ME",
]
NOT_HERE = "GTEST_" + 'SKIP() << "only root can";'
PLACES = [
    "this work" + "place",
    "see /wo" + "rk/main",
    "../sha" + "red/x",
    ".lib" + "rary/env",
    "https://pypi.o" + "rg/simple",
]

# rule, path, what must be found there
BAD = [
    ("layering", "ros/a.cc", '#include "sim/world.h"'),
    ("layering", "ros/a.cc", '#include "prod/tcp.h"'),
    ("layering", "ros/a.cc", "#include <thread>"),
    ("layering", "ros/a.cc", "#include <sys/uio.h>"),
    ("layering", "ros/a.cc", "#include <kj/async.h>"),
    ("layering", "ros/a.cc", "#include <xxhash.h>"),
    ("layering", "net/a.h", '#include "ros/server.h"'),
    ("layering", "net/a.h", "#include <chrono>"),
    ("layering", "flow/a.h", '#include "net/ids.h"'),
    ("layering", "flow/a.h", "#include <random>"),
    ("layering", "sim/a.cc", '#include "prod/tcp.h"'),
    ("layering", "prod/a.cc", '#include "sim/world.h"'),
    ("layering", "prod/a.cc", "  #  include <sim/world.h>"),
    ("namespaces", "prod/a.cc", "weightlane::sim::World world;"),
    ("namespaces", "ros/a.cc", "weightlane::prod::Loop loop;"),
    ("randomness", "sim/a.cc", "std::uniform_int_distribution<int> dice;"),
    ("randomness", "ros/a.cc", "std::random_device d;"),
    ("randomness", "net/a.cc", "int x = rand();"),
    ("randomness", "sim/a.cc", "std::shuffle(a, b, c);"),
    ("clocks", "ros/a.cc", "auto t = std::chrono::steady_clock::now();"),
    ("clocks", "sim/a.cc", "auto t = time(nullptr);"),
    ("clocks", "ros/a.cc", "auto t = std::chrono::steady_clock::now();  // lint: wall clock"),
    ("threads", "ros/a.cc", "std::mutex m;"),
    ("threads", "flow/a.cc", "thread_local int x = 0;"),
    ("unordered", "sim/a.cc", "std::unordered_map<int, int> m;"),
    ("unordered", "ros/a.h", "for (auto& x : std::unordered_set<int>{}) {}"),
    ("pointer_keys", "ros/a.h", "std::map<const Node*, int> m;"),
    ("pointer_keys", "sim/a.h", "std::set<Task<int>*> s;"),
    ("hashing", "sim/a.h", "std::hash<int> h;"),
    ("floats", "ros/a.cc", "double load = 0.5;"),
    ("lambda_coroutines", "prod/a.cc", "auto f = [this](int a) -> Task<void> { co_await g(a); };"),
    ("lambda_coroutines", "tests/a_test.cc", "run([&] () { if (x) { co_return; } });"),
    (
        "lambda_coroutines",
        "ros/a.cc",
        "f(std::function<void(int)>(), [x, y = g(z)]() mutable -> Task<int>\n{\n co_return x;\n});",
    ),
    ("reference_parameters", "ros/a.h", "Task<void> pull(const Request& request);"),
    (
        "reference_parameters",
        "ros/a.cc",
        "flow::Task<Result<int>> Server::pull(int a, Request&& r) {\n  co_return a;\n}",
    ),
    ("reference_parameters", "sim/a.cc", "auto f = [](Host& host) -> Task<void> { co_return; };"),
    *[("unfinished", "tests/x/a.cc", text) for text in UNFINISHED],
    ("unfinished", "ros/a.cc", "if (x) " + NOT_HERE),
    *[("elsewhere", "tests/x.py", text) for text in PLACES],
    ("documents", "ros/a.cc", "// see NOWHERE" + ".md"),
    ("length", "ros/a.h", "\n" * 400),
    ("length", "prod/a.cc", "\n" * 800),
    ("opening", "ros/a.cc", None),
]

# path, what must pass every rule
GOOD = [
    (
        "ros/a.h",
        '#include <vector>\n#include "flow/task.h"\n#include "net/ids.h"\n#include "ros/b.h"',
    ),
    ("net/a.cc", "#include <capnp/message.h>\n#include <kj/string.h>"),
    (
        "prod/a.cc",
        '#include <thread>\n#include <kj/async.h>\n#include "ros/server.h"\nstd::mutex m; double x;',
    ),
    ("sim/a.cc", "auto t = steady_clock::now();  // lint: wall clock"),
    ("sim/a.cc", "std::unordered_map<int, int> m;  // lint: lookup only"),
    (
        "ros/a.cc",
        '// a std::mutex, rand() and steady_clock in a comment\nauto s = "std::hash, rand() time(nullptr)";',
    ),
    (
        "ros/a.cc",
        "int million = 1'000'000; char c = 'x'; std::map<int, Node*> by_id; int t = clock.time(); operand(3);",
    ),
    ("ros/a.cc", "auto f = [](int a) -> Task<void> { co_await g(a); };"),
    ("ros/a.cc", "auto f = [this] { g([](int a) -> Task<void> { co_return; }(3)); };"),
    (
        "ros/a.cc",
        "Task<void> f(int a) { if (v[i]) { co_return; } if (x) [[unlikely]] { co_await y; } }",
    ),
    ("ros/a.cc", "Task<void> f(Request request, Server* server);\nint g(const Request& request);"),
    ("flow/a.h", "Task<int> wrap(Task<int>&& task) { return std::move(task); }"),
    (
        "flow/a.h",
        "template <typename T>\nTask<T> late(Runtime& runtime, Task<T> task) {\n  co_return co_await task;\n}",
    ),
    ("flow/a.h", "Task<int> wrap(Task<int>&& task);  // lint: not a coroutine"),
    ("flow/assert.cc", "thread_local AssertContext context = nullptr;"),
    ("net/digest.cc", "#include <xxhash.h>"),
    ("tests/x/a_test.cc", "if (!has_it) " + NOT_HERE),
    ("ros/a.h", "\n" * 398),
    ("README.md", "Shared memory and README.md; work in progress."),
]


def findings_in(path, text):
    with tempfile.TemporaryDirectory() as root:
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as stream:
            stream.write("int x;\n" if text is None else HEAD + text + "\n")
        return lint.check(root)[0]


def main():
    wrong = 0
    for rule, path, text in BAD:
        if rule not in [finding[2] for finding in findings_in(path, text)]:
            print(f"not found: {rule} in {path}: {(text or '')[:80]!r}")
            wrong += 1
    for path, text in GOOD:
        for finding in findings_in(path, text):
            print(f"false alarm: {finding} in {text[:80]!r}")
            wrong += 1
    for rule in [rule.__name__ for rule in lint.RULES] + ["documents"]:
        if rule not in [case[0] for case in BAD]:
            print(f"no mistake is planted for the rule {rule}")
            wrong += 1
    print(f"lint self-test: {len(BAD)} planted mistakes, {len(GOOD)} harmless files, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
