"""``python -m polysci``."""

import sys

from polysci.cli import main

if __name__ == "__main__":
    sys.exit(main())
