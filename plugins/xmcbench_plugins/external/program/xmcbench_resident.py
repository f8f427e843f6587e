"""Runs a program's stage `predict` many times in one process: `python xmcbench_resident.py PROGRAM`.

Each line of the standard input is a folder; the answer to it is a line of JSON, `null` or the text of an error. The
process ends when its standard input does. What the program imports, and what it loads through `Task.loaded`, stays.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the program prints goes to the standard error
program = sys.argv[1]
for line in sys.stdin:
    sys.argv = [program, "predict", line.rstrip("\n")]
    problem = None
    try:
        runpy.run_path(program, run_name="__main__")
    except (Exception, SystemExit) as raised:
        problem = f"{type(raised).__name__}: {raised}"
    print(json.dumps(problem), file=answers, flush=True)
