"""`python -m acefl` is `acefl`."""

import sys

from acefl.cli import main

if __name__ == "__main__":
    sys.argv[0] = "acefl"  # what a record says it was made by
    sys.exit(main())
