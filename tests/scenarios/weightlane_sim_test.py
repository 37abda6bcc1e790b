"""Goal: weightlane-sim's commands do what they say: the closing line, exit codes, bad arguments in one
line, traces that replay, determinism with and without address randomisation, planted bugs found.
Method: the built programs are run in a folder of their own and their output is read."""
import json
import re
import subprocess
import sys
import tempfile

SIM, BUGS = sys.argv[1:3]
CLOSING = re.compile(
    r"^schedules=(\d+) violations=(\d+) seconds=[\d.]+ schedules_per_second=[\d.]+ events=(\d+) hash=([0-9a-f]{16})$"
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

    run("record", "4711", "one.trace")
    story = run("replay", "one.trace").stdout
    assert "the same run" in story and "columns:" in story and story.count("\n") > 100
    with open(FOLDER + "/one.trace") as file:
        text = file.read()
    with open(FOLDER + "/bad.trace", "w") as file:
        file.write(text.replace("\nseed ", "\nsead "))
    bad("replay", "bad.trace", mentions="line 5")
    bad("replay", "none.trace", mentions="none.trace")
    bad("run", "--scenario", "nothing", mentions="there are: default")
    bad("run", "--seeds", "many", mentions="--seeds")
    bad("fly", mentions="fly")
    for command in ("run", "replay", "record", "probes"):
        assert "example: weightlane-sim " + command in run(command, "--help").stdout

    probes = [json.loads(line) for line in run("probes", "--seeds", "60", "--json").stdout.splitlines()]
    assert any(probe["probe"] == "ros.read.sealed" and probe["hits"] > 0 for probe in probes)

    found = []
    for line in subprocess.run(
        [SIM, "bugs", "--seeds", "400", "--ranges", "1", "--jobs", "2", "--json"],
        cwd=FOLDER, capture_output=True, text=True, timeout=500,
    ).stdout.splitlines():
        bug = json.loads(line)
        assert set(bug) == {"bug", "found", "median_seeds", "p95_seeds", "checker"}
        print(line)
        if bug["found"]:
            found.append(bug["bug"])
    assert len(found) >= 10, found
    # With no bug switched on, the second build behaves like the first.
    assert closing(run("run", "--seeds", "40", "--first", "100", program=BUGS))[3] == one_job
print("ok")
