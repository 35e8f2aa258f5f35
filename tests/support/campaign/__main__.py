"""``python -m tests.support.campaign CASE``, or ``layer|network SEED [COUNT]``: run cases."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.support.caches import write_policy
from tests.support.campaign.child import KINDS, Campaign
from tests.support.rates import assume_rates_of_all


def main(words: list[str]) -> int:
    """Print what is wrong with each case; 1 if anything is."""
    with tempfile.TemporaryDirectory(prefix="polysci-campaign-") as path:
        os.environ["POLYSCI_CACHE_DIR"] = path
        write_policy(Path(path))
        assume_rates_of_all()
        if words[1].isdigit():
            random, kind = Random(int(words[1])), KINDS[words[0]]
            cases = [kind.draw(random) for _ in range(int(words[2]) if words[2:] else 100)]
        else:
            cases = [KINDS[words[0]].parse(shlex.join(words))]
        campaign, failed = Campaign(), 0
        try:
            for case in cases:
                if told := campaign.wrong(case):
                    failed += 1
                    print(told, flush=True)
        finally:
            campaign.close()
    print(f"{len(cases)} cases, {failed} wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
