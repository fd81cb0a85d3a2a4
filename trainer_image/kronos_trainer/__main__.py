"""`python -m kronos_trainer`: run one member of a gang."""

import sys

from kronos_trainer.launcher import main

if __name__ == "__main__":
    sys.exit(main())
