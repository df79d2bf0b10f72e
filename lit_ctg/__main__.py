"""`python -m lit_ctg COMMAND [key=value ...]` is `lit-ctg COMMAND [key=value ...]`."""

import sys

from lit_ctg.cli import main

if __name__ == "__main__":
    sys.exit(main())
