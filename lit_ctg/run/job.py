"""One job of a sweep as a process: ``python -m lit_ctg.run.job OVERRIDE ...``, started by ``run/jobs.py``."""

from __future__ import annotations

import sys

from lit_ctg.run.jobs import die_with_the_sweep

if __name__ == "__main__":
    # before the slow imports: a job whose sweep is gone must not get as far as a lock
    die_with_the_sweep()
    from lit_ctg.run.sweep import run_job

    sys.exit(run_job(sys.argv[1:]))
