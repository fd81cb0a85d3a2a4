"""``python -m kronos.local.images``: build both images and print their archives."""

import sys

from kronos.local.images import main

sys.exit(main())
