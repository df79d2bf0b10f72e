from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest

from lit_ctg.run.quiet import LOGGERS, quiet


@pytest.mark.long
def test_importing_the_package_mutes_nobody() -> None:
    script = (
        "import logging, warnings, lightning\n"
        "names = ('lightning.pytorch', 'lightning.fabric')\n"
        "before = [logging.getLogger(name).level for name in names]\n"
        "import lit_ctg.cli, lit_ctg.run.train, lit_ctg.run.evaluate, lit_ctg.run.generate, lit_ctg.run.sweep\n"
        "assert before == [logging.getLogger(name).level for name in names]\n"
        "assert not [rule for rule in warnings.filters if rule[1] and 'workers' in rule[1].pattern]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_is_put_back() -> None:
    levels = [logging.getLogger(name).level for name in LOGGERS]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with quiet():
                assert [logging.getLogger(name).level for name in LOGGERS] == [logging.WARNING] * len(LOGGERS)
                warnings.warn("the dataloader does not have many workers which may be", stacklevel=1)
                raise KeyError
        except KeyError:
            pass
        assert not caught
        warnings.warn("it does not have many workers", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["it does not have many workers"]
    assert [logging.getLogger(name).level for name in LOGGERS] == levels
