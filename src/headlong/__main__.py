"""`python -m headlong` is the same as `headlong`."""

import sys

from headlong.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
