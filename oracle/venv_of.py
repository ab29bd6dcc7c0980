"""A virtual environment of its own for an adapter whose packages are large: made once below .cache/, by the adapter
itself."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def enter(name, requirements):
    """Continues the running script inside the environment `name`, which has the packages of the file `requirements`;
    makes it first if need be. Exit 77 with words where the packages can't be had. A changed file of
    requirements makes another one."""
    text = Path(requirements).read_text()
    folder = ROOT / ".cache" / f"venv-{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        print(f"{name}: installing {requirements} into {folder} (minutes, once)", file=sys.stderr, flush=True)
        log = folder.with_suffix(".log")
        log.parent.mkdir(exist_ok=True)
        with open(log, "w") as out:
            for command in (
                [sys.executable, "-m", "venv", "--clear", folder],
                [python, "-m", "pip", "install", "-r", requirements],
            ):
                if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode:
                    print(
                        f"{name}: not run: the packages of {requirements} can't be had here; see {log}", file=sys.stderr
                    )
                    sys.exit(77)
        (folder / "complete").touch()
    os.execv(python, [python, *sys.argv])
