#!/usr/bin/env python3
"""in_venv.py SCRIPT|-m MODULE ARGS...: runs a script of this folder with the packages of requirements.txt."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import venv_of  # noqa: E402

if __name__ == "__main__":
    venv_of.enter("official", HERE / "requirements.txt")
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(str(HERE / sys.argv[0]), run_name="__main__")
