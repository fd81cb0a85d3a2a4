"""`make exact`: a thousand generated small gangs placed, each beside the best place and rank map that there are, as JSON."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict

from support.exact import survey

COUNT = 1000


def main(arguments: list[str]) -> int:
    """Survey the cases of a seed, a fresh one by default; 1 when any was placed wrongly or mapped worse than allowed."""
    seed = int(arguments[0]) if arguments else random.randrange(2**32)
    found = survey(seed, COUNT)
    print(json.dumps({"seed": seed, **asdict(found)}, indent=2))
    return int(bool(found.wrong or found.worse_than_natural or found.excess > 0.02))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
