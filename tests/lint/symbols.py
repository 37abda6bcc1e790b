#!/usr/bin/env python3
"""Goal: what ships holds no simulator and no planted bug.

Method: nm over the linked binaries, and their bytes for the name of the planted bugs' type, which
debug information would keep. Each search must also find what it looks for where that is at home,
in the simulator and in the build with the bugs: otherwise it is blind (a stripped binary, say) and
proves nothing.

symbols.py WEIGHTLANE WEIGHTLANE-SIM [WEIGHTLANE-SIM-BUGS]
"""
import subprocess
import sys

# As mangled names spell them.
SIMULATOR = "10weightlane3sim"
PROTOCOL = "10weightlane3ros"
BUGS = b"PlantedBug"


def symbols(binary, part):
    listed = subprocess.run(["nm", binary], capture_output=True, check=True, text=True).stdout
    return [line.split()[-1] for line in listed.splitlines() if part in line]


def mentions(binary, word):
    with open(binary, "rb") as stream:
        return stream.read().count(word)


def main():
    ships, simulator = sys.argv[1:3]
    complaints = []
    inside = symbols(ships, SIMULATOR)
    if inside:
        complaints.append(f"{ships} has {len(inside)} symbols of the simulator: {inside[0]}, ...")
    if not symbols(ships, PROTOCOL):
        complaints.append(f"{ships} shows no symbol of the protocol: the search is blind")
    if not symbols(simulator, SIMULATOR):
        complaints.append(f"{simulator} shows no symbol of the simulator: the search is blind")
    for binary in (ships, simulator):
        if mentions(binary, BUGS):
            complaints.append(f"{binary} has traces of the planted bugs ({BUGS.decode()})")
    for binary in sys.argv[3:]:
        if not mentions(binary, BUGS):
            complaints.append(f"{binary} shows no planted bug: the search is blind")
    for complaint in complaints:
        print(complaint)
    print(f"symbols: {len(sys.argv) - 1} binaries, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
