#!/usr/bin/env python3
"""Goal: what ships holds no simulator and no planted bug.

Method: nm over the linked binaries. `weightlane` must have no symbol of namespace weightlane::sim. The same search over
`weightlane-sim` must find some: otherwise the search is blind (a stripped binary, say) and proves nothing.

symbols.py WEIGHTLANE WEIGHTLANE-SIM
"""
import subprocess
import sys

SIMULATOR = "10weightlane3sim"  # weightlane::sim, as every mangled name within it spells it


def symbols(binary, part):
    listed = subprocess.run(["nm", binary], capture_output=True, check=True, text=True).stdout
    return [line.split()[-1] for line in listed.splitlines() if part in line]


def main():
    ships, simulator = sys.argv[1:3]
    wrong = 0
    inside = symbols(ships, SIMULATOR)
    if inside:
        print(f"{ships} contains {len(inside)} symbols of the simulator, first {inside[0]}")
        wrong = 1
    control = symbols(simulator, SIMULATOR)
    if not control:
        print(f"{simulator} shows no symbol of the simulator: this check sees nothing")
        wrong = 1
    if not symbols(ships, "10weightlane3ros"):
        print(f"{ships} shows no symbol of the protocol: this check sees nothing")
        wrong = 1
    print(f"symbols of weightlane::sim: {len(inside)} in weightlane, {len(control)} in weightlane-sim")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
