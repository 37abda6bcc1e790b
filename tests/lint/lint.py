#!/usr/bin/env python3
"""Goal: the rules of the house that a compiler does not check fail the build's tests.

Method: every text file of the tree is read; C++ is looked at with comments and strings blanked. A
rule is a function that yields (line, message). Best effort by regular expressions: clang-tidy is
exact where the two overlap (./run tidy). A line may carry an exception, which names its reason by
its kind:
    // lint: lookup only         an unordered container that nobody iterates over
    // lint: wall clock          sim/ only: how long a campaign took, no input to a schedule
    // lint: not a coroutine     returns a Task that another function made; may take references
    // lint: not a decision      floating point that is only shown

lint.py ROOT        prints findings, exits 1 if there are any
lint_self_test.py   plants each mistake and expects it to be found
"""
import os
import re
import subprocess
import sys

# Longer than the house wants (headers 400, sources 800 lines), and why.
LONG_FILES = {}

CODE = (".h", ".cc")
TEXT = CODE + (".py", ".sh", ".md", ".txt", ".cmake", ".capnp", ".json", ".trace", "")
DETERMINISTIC = ("flow", "net", "ros", "sim")
PROTOCOL = ("flow", "net", "ros")
LAYERS = DETERMINISTIC + ("prod",)

# Folders a layer may include from, and whether other libraries' headers are its business.
SEES = {
    "flow": (("flow",), ()),
    "net": (("flow", "net"), ("kj", "capnp")),
    "ros": (("flow", "net", "ros"), ()),
    "sim": (("flow", "net", "ros", "sim"), None),
    "prod": (("flow", "net", "ros", "prod"), None),
}
STD_FOR_PROTOCOL = set(
    "algorithm array atomic bit bitset charconv cinttypes climits compare concepts coroutine "
    "cstddef cstdint cstring deque exception functional initializer_list iterator limits list map "
    "memory memory_resource new numeric optional queue ranges set source_location span string "
    "string_view tuple type_traits unordered_map unordered_set utility variant vector version".split()
)
# Pure calculation, known as harmless: which file may use which library's header.
HARMLESS = {"net/digest.cc": {"xxhash.h"}}
# What only the runtime's own folder needs besides: printing a failed assertion, and stopping.
STD_FOR_FLOW = STD_FOR_PROTOCOL | {"cassert", "cstdio", "cstdlib"}

BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
    r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.S,
)


def blank(text):
    """The code alone: comments and literals become blanks, lines stay where they are."""
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def close_of(text, start, opening, closing):
    """Offset of the bracket that closes the one at `start`, or -1."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] == opening:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if depth == 0:
                return at
    return -1


class File:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.layer = path.split("/")[0] if "/" in path else ""
        self.is_code = path.endswith(CODE)
        self.lines = text.split("\n")
        self.code = blank(text) if self.is_code else ""

    def excused(self, line, kind):
        return "// lint: " + kind in self.lines[line - 1]

    def matches(self, pattern, kind=None):
        """Lines of code where the pattern stands and no exception of that kind does."""
        for match in re.finditer(pattern, self.code):
            line = line_of(self.code, match.start())
            directive = self.lines[line - 1].lstrip().startswith("#")
            if not directive and not (kind and self.excused(line, kind)):
                yield line, match.group().strip()


# ---- rules ---------------------------------------------------------------------------------------


def layering(file):
    if file.layer not in SEES:
        return
    own, libraries = SEES[file.layer]
    for number, line in enumerate(file.lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        quote, name = match.groups()
        top = name.split("/")[0] if "/" in name else ""
        if quote == '"' or top in LAYERS + ("tests", "fuzz"):
            if top not in own:
                yield number, f"{file.layer}/ must not include {name}; it sees {', '.join(own)}"
        elif libraries is not None and top not in libraries:
            allowed = STD_FOR_FLOW if file.layer == "flow" else STD_FOR_PROTOCOL
            if name not in allowed and name not in HARMLESS.get(file.path, ()):
                yield number, f"{file.layer}/ must not include <{name}>: not known as harmless"


def namespaces(file):
    hidden = {
        "flow": "net|ros|sim|prod",
        "net": "ros|sim|prod",
        "ros": "sim|prod",
        "sim": "prod",
        "prod": "sim",
    }
    if file.layer in hidden:
        for line, what in file.matches(r"\bweightlane::(?:%s)\b" % hidden[file.layer]):
            yield line, f"{file.layer}/ must not name {what}"


def randomness(file):
    if file.layer not in DETERMINISTIC:
        return
    for line, what in file.matches(
        r"\b\w+_distribution\b|\brandom_device\b|(?<![\w.>])s?rand\s*\(|"
        r"\bstd::(?:mt19937\w*|minstd_rand\w*|default_random_engine|shuffle|sample)\b|"
        r"\bgetrandom\b|\bdrand48\b"
    ):
        yield line, f"'{what}': every draw comes from the Runtime, in whole numbers"


def clocks(file):
    if file.layer not in DETERMINISTIC:
        return
    kind = "wall clock" if file.layer == "sim" else None
    for line, what in file.matches(
        r"\b(?:steady|system|high_resolution|utc|file)_clock\b|"
        r"\btime\s*\(\s*(?:nullptr|NULL|0|&)|"
        r"\bgettimeofday\b|\bclock_gettime\b|\bthis_thread\b|\b(?:u|nano)sleep\s*\(",
        kind,
    ):
        yield line, f"'{what}': time comes from the Runtime"


def threads(file):
    if file.layer in PROTOCOL:
        for line, what in file.matches(
            r"\bstd::(?:j?thread|mutex|\w+_mutex|condition_variable\w*|async|call_once)\b|"
            r"\bthread_local\b|\bpthread_\w+"
        ):
            # The one thread's context of a failed assertion is the runtime's own.
            if not (file.path.startswith("flow/assert") and what == "thread_local"):
                yield line, f"'{what}': one thread runs this code"


def unordered(file):
    if file.layer in DETERMINISTIC:
        for line, what in file.matches(r"\bunordered_(?:multi)?(?:map|set)\b", "lookup only"):
            yield line, f"'{what}': no order to rely on; std::map, or say `lint: lookup only`"


def pointer_keys(file):
    if file.layer in DETERMINISTIC:
        for line, what in file.matches(
            r"\b(?:map|set|multimap|multiset)<\s*(?:const\s+)?[\w:]+(?:<[^<>]*>)?\s*"
            r"(?:const\s*)?\*\s*(?:const\s*)?[,>]"
        ):
            yield line, f"'{what}': ordered by address; key by an id"


def hashing(file):
    if file.layer in DETERMINISTIC:
        for line, what in file.matches(r"\bstd::hash\b"):
            yield line, f"'{what}' differs between libraries"


def floats(file):
    if file.layer in PROTOCOL:
        for line, what in file.matches(r"\b(?:float|double)\b", "not a decision"):
            yield line, f"'{what}': decisions are made in whole numbers"


def lambdas_of(code):
    """(offset, captures, first of body, last of body) of each lambda."""
    pattern = re.compile(
        r"\[([^\[\]]*)\]\s*(?:<[^{}()]*>\s*)?(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?"
        r"(?:(?:mutable|noexcept|constexpr)\s*)*(?:->\s*[\w:<>,\s*&]+?)?\s*\{"
    )
    for match in pattern.finditer(code):
        before = re.search(r"([\w)\]]+)\s*$", code[max(0, match.start() - 40) : match.start()])
        if before and before.group(1) not in ("return", "co_return", "co_await", "co_yield"):
            continue  # a subscript
        end = close_of(code, match.end() - 1, "{", "}")
        if end > 0:
            yield match.start(), match.group(1).strip(), match.end(), end


def lambda_coroutines(file):
    if not file.is_code:
        return
    found = list(lambdas_of(file.code))
    for start, captures, first, last in found:
        body = file.code[first:last]
        for other, _, inner_first, inner_last in found:
            if first <= other < last:
                inside = " " * (inner_last - inner_first)
                body = body[: inner_first - first] + inside + body[inner_last - first :]
        if captures and re.search(r"\bco_(?:await|return|yield)\b", body):
            message = f"coroutine lambda captures [{captures}]: dead after its first suspension"
            yield line_of(file.code, start), message


FUNCTION_NAME = re.compile(r"\s+(?:[\w:]|<[^<>()]*>)*\w\s*\(|\s+(?:[\w:])*operator\(\)\s*\(")


def reference_parameters(file):
    if not file.is_code:
        return
    code = file.code
    for match in re.finditer(r"\bTask<", code):
        end = close_of(code, match.end() - 1, "<", ">")
        name = FUNCTION_NAME.match(code, end + 1)
        if end < 0 or not name:
            continue
        closing = close_of(code, name.end() - 1, "(", ")")
        parameters = code[name.end() : closing]
        line = line_of(code, match.start())
        # A Runtime owns the tasks it runs, so it outlives them all.
        short_lived = re.sub(r"\bRuntime\s*&(?!&)", "", parameters)
        if "&" not in short_lived or file.excused(line, "not a coroutine"):
            continue
        body = re.compile(r"[^;{}=]*\{").match(code, closing + 1)
        if body:
            last = close_of(code, body.end() - 1, "{", "}")
            if not re.search(r"\bco_(?:await|return|yield)\b", code[body.end() : last]):
                continue
        yield line, f"coroutine takes a reference: ({' '.join(parameters.split())})"
    in_lambda = r"\]\s*\(([^()]*&[^()]*)\)\s*(?:mutable\s*|noexcept\s*)*->\s*(?:\w+::)*Task<"
    for match in re.finditer(in_lambda, code):
        parameters = " ".join(match.group(1).split())
        yield line_of(code, match.start()), f"coroutine lambda takes a reference: ({parameters})"


# Put together from halves, so that this file does not contain what it looks for.
UNFINISHED = re.compile(r"\b(?:TO" "DO|FIX" "ME|XX" r"X)\b|\bGTEST_" r"SKIP\b|\bDISA" "BLED_")
ELSEWHERE = re.compile(
    r"(?<![\w.])/wo"
    r"rk/|\.\./sha"
    r"red\b|\bsha"
    r"red/[A-Z]|\.lib"
    r"rary\b|\bwl-"
    r"brief|"
    r"\bissues sh"
    r"ow\b|\bwork"
    r"place\b|\bbash_"
    r"jobs\b|"
    r"\bdeb\.deb"
    r"ian\.org|\bpypi\.o"
    r"rg\b|\bpythonho"
    r"sted\b"
)
DOCUMENT = re.compile(r"(?<![\w/.-])[A-Z][A-Z_-]{2,}\.md\b")


# Only where the transport or the machine lacks what the test is about, and with the reason.
NOT_APPLICABLE = re.compile(r"\bif \(.*\bGTEST_" r'SKIP\(\) << "|^\s+GTEST_' r'SKIP\(\) << "')


def unfinished(file):
    for number, line in enumerate(file.lines, 1):
        match = UNFINISHED.search(line)
        if file.path.startswith("tests/") and NOT_APPLICABLE.search(line):
            continue
        if match:
            yield number, f"'{match.group()}': finish it, or leave it out"


def elsewhere(file):
    for number, line in enumerate(file.lines, 1):
        match = ELSEWHERE.search(line)
        if match:
            yield number, f"'{match.group()}' exists only where this was written"


def length(file):
    limit = 400 if file.path.endswith(".h") else 800
    count = len(file.lines) - 1
    if file.is_code and count > limit and file.path not in LONG_FILES:
        yield limit, f"{count} lines, more than {limit}: split it, or give the reason in LONG_FILES"


def opening(file):
    if file.is_code and not file.lines[0].startswith(("//", "/*")):
        yield 1, "opens without a comment on its idea"


RULES = (
    layering,
    namespaces,
    randomness,
    clocks,
    threads,
    unordered,
    pointer_keys,
    hashing,
    floats,
    lambda_coroutines,
    reference_parameters,
    unfinished,
    elsewhere,
    length,
    opening,
)


def dangling_documents(files):
    names = {os.path.basename(file.path) for file in files}
    for file in files:
        for number, line in enumerate(file.lines, 1):
            for match in DOCUMENT.finditer(line):
                if match.group() not in names:
                    message = f"{match.group()} is not part of this repository"
                    yield file.path, number, "documents", message


# ---- the tree ------------------------------------------------------------------------------------


def paths_of(root):
    """What git tracks or would; without git, what is there."""
    try:
        command = [
            "git",
            "-c",
            "safe.directory=*",
            "-C",
            root,
            "ls-files",
            "-z",
            "-co",
            "--exclude-standard",
        ]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        return sorted(path for path in listed.split("\0") if path)
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(root):
            inside = os.path.relpath(folder, root)
            folders[:] = [
                name
                for name in folders
                if name != ".git" and not (inside == "." and name.startswith("build"))
            ]
            found += [os.path.normpath(os.path.join(inside, name)) for name in names]
        return sorted(found)


def check(root):
    """(path, line, rule, message) of every finding under root; and how many files were read."""
    files = []
    for path in paths_of(root):
        full = os.path.join(root, path)
        if os.path.splitext(path)[1] in TEXT and os.path.isfile(full):
            try:
                with open(full, encoding="utf-8") as stream:
                    files.append(File(path, stream.read()))
            except UnicodeDecodeError:
                continue  # not text
    findings = [
        (file.path, line, rule.__name__, message)
        for file in files
        for rule in RULES
        for line, message in rule(file)
    ]
    findings += dangling_documents(files)
    return sorted(findings), len(files)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    findings, read = check(root)
    for path, line, rule, message in findings:
        print(f"{path}:{line}: {rule}: {message}")
    if read < 5:
        print(f"lint: only {read} files under {root}: nothing was checked")
        return 1
    print(f"lint: {read} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
