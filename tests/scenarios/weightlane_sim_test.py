"""Goal: weightlane-sim's commands do what they say: the closing line, exit codes, bad arguments in one
line, traces that replay, determinism with and without address randomisation, planted bugs found.
Method: the built programs are run in a folder of their own and their output is read."""
import json
import os
import re
import subprocess
import sys
import tempfile

SIM, BUGS = sys.argv[1:3]
CLOSING = re.compile(
    r"^schedules=(\d+) violations=(\d+) seconds=[\d.]+ schedules_per_second=[\d.]+ events=(\d+) hash=([0-9a-f]{16})"
    r" simulated_over_real=\d+$"
)


def run(*arguments, program=SIM, code=0, prefix=()):
    done = subprocess.run([*prefix, program, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, (arguments, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def closing(done):
    match = CLOSING.match(done.stdout.splitlines()[-1])
    assert match, done.stdout
    return match.groups()


def bad(*arguments, mentions):
    done = run(*arguments, code=2)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and mentions in lines[0], done.stderr
    assert not done.stdout, done.stdout


def check_perfetto(path):
    """The Chrome trace event format, as ui.perfetto.dev reads it: spans nest, references lead somewhere."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    named, open_spans, open_reads, arrows, phases = set(), {}, {}, set(), set()
    last = 0.0
    for event in events:
        phase, place = event["ph"], (event["pid"], event.get("tid"))
        phases.add(phase)
        if phase == "M":
            named.add(event["pid"] if event["name"].startswith("process") else place)
            continue
        assert event["pid"] in named and place in named, event
        assert event["ts"] >= last, event
        last = event["ts"]
        if phase == "B":
            open_spans.setdefault(place, []).append(event["name"])
        elif phase == "E":
            open_spans[place].pop()
        elif phase == "b":
            open_reads[event["id"]] = event["name"]
        elif phase == "e":
            assert open_reads.pop(event["id"]) == event["name"], event
        elif phase == "s":
            arrows.add(event["id"])
        elif phase == "f":
            assert event["id"] in arrows, event
        else:
            assert phase in "Xi", event
    assert not any(open_spans.values()) and not open_reads, (open_spans, open_reads)
    assert {"M", "B", "E", "b", "e", "i", "X", "s", "f"} <= phases, phases


with tempfile.TemporaryDirectory() as FOLDER:
    schedules, violations, events, one_job = closing(run("run", "--seeds", "40", "--first", "100"))
    assert (schedules, violations) == ("40", "0") and int(events) > 40 * 500
    # The sum does not depend on how the work was spread, nor on where the loader puts things.
    assert closing(run("run", "--seeds", "40", "--first", "100", "--jobs", "2"))[3] == one_job
    fixed = run("run", "--seeds", "40", "--first", "100", prefix=("setarch", "-R"))
    assert closing(fixed)[3] == one_job
    closing(run("run", "--seeds", "20", "--check-determinism"))
    report = json.loads(run("run", "--seeds", "5", "--json").stdout)
    assert report["schedules"] == 5 and report["violations"] == 0

    # CI's first seed is the commit's hash: its first twelve digits.
    by_hash = run("run", "--seeds", "3", "--first", "00000000006400000000000000000000000000aa")
    assert closing(by_hash) == closing(run("run", "--seeds", "3", "--first", "0x64"))

    run("record", "4711", "one.trace")
    story = run("replay", "one.trace").stdout
    assert "the same run" in story and "columns:" in story and story.count("\n") > 100
    with open(FOLDER + "/one.trace") as file:
        text = file.read()
    with open(FOLDER + "/bad.trace", "w") as file:
        file.write(text.replace("\nseed ", "\nsead "))
    bad("replay", "bad.trace", mentions="line 5")
    bad("replay", "none.trace", mentions="none.trace")
    story = run("explain", "one.trace", "--perfetto", "one.json").stdout
    assert "columns:" in story and "except these" in story and "faults:" in story
    check_perfetto(FOLDER + "/one.json")

    # A planted bug's trace: found, made small, told, and clean where the bug is not.
    run("run", "--bug", "two-readers", "--seeds", "3", "--traces", ".", program=BUGS, code=1)
    trace = next(name for name in os.listdir(FOLDER) if name.startswith("default-"))
    made = run("shrink", trace, "--out", "small.trace", "--budget", "30", program=BUGS).stdout
    assert "FIFO" in made and "faults:" in made, made
    left = open(FOLDER + "/small.trace").read()
    assert left.count("\nchoice ") <= 3 and "\nbug      two-readers\n" in left, left
    assert "violation: P7" in run("replay", "small.trace", program=BUGS).stdout
    assert "violation: P7" in run("explain", "small.trace", program=BUGS).stdout
    assert "no violation" in run("explain", "small.trace").stdout
    assert "violation" not in run("replay", "small.trace").stdout.splitlines()[-1]
    bad("shrink", "small.trace", mentions="weightlane-sim-bugs")

    # Few choices away from FIFO, a scenario is clean; with its rule broken it is not.
    figure6 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "figure6.txt")
    assert " violations=0 " in run("explore", figure6).stdout
    broken = run("explore", figure6, "--bug", "visible-early", program=BUGS, code=1).stdout
    assert "violation: P4" in broken and "FIFO except these" in broken, broken
    bad("run", "--scenario", "nothing", mentions="there are: default")
    bad("run", "--seeds", "many", mentions="--seeds")
    bad("fly", mentions="fly")
    for command in ("run", "replay", "record", "probes", "shrink", "explain", "explore"):
        assert "example: weightlane-sim " + command in run(command, "--help").stdout

    probes = [json.loads(line) for line in run("probes", "--seeds", "60", "--json").stdout.splitlines()]
    assert any(probe["probe"] == "ros.read.sealed" and probe["hits"] > 0 for probe in probes)

    found = []
    for line in subprocess.run(
        [SIM, "bugs", "--seeds", "400", "--ranges", "1", "--jobs", "2", "--json"],
        cwd=FOLDER, capture_output=True, text=True, timeout=500,
    ).stdout.splitlines():
        bug = json.loads(line)
        assert set(bug) == {"bug", "found", "median_seeds", "p95_seeds", "checker", "shrunk_deviations"}
        print(line)
        if bug["found"]:
            found.append(bug["bug"])
    assert len(found) >= 10, found
    # With no bug switched on, the second build behaves like the first.
    assert closing(run("run", "--seeds", "40", "--first", "100", program=BUGS))[3] == one_job
print("ok")
