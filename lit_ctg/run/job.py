"""One run as a process that dies with its starter: ``python -m lit_ctg.run.job OVERRIDE ...``.

A sweep (``run/jobs.py``) names its journal and reads there what became of the run; for the lab (``run/lab.py``), which
names none, it is `lit-ctg train` with its last line and exit code.
"""

from __future__ import annotations

import os
import sys

from lit_ctg.run.jobs import JOURNAL_VARIABLE, die_with_the_sweep

if __name__ == "__main__":
    # before the long imports: a job whose sweep is gone must not come as far as a lock
    die_with_the_sweep()
    if JOURNAL_VARIABLE in os.environ:
        from lit_ctg.run.sweep import run_job

        sys.exit(run_job(sys.argv[1:]))
    from lit_ctg.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
