"""`python -m kronos.local.demo`: starts a cluster of its own, plays the demo, leaves nothing behind.

With KRONOS_KEEP=1, and after a failure, the folder with all logs stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from kronos.local.cluster import ClusterError, LocalCluster
from kronos.local.demo.display import Display
from kronos.local.demo.play import DemoError, play
from kronos.local.gobuild import BuildError
from kronos.local.topology import default_topology
from kronos.local.versions import UnsupportedPlatformError


def main() -> int:
    """Play the demo; 0 when it showed all that it should."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    display = Display(Console())
    state = Path(tempfile.mkdtemp(prefix="kronos-demo-"))
    keep = os.environ.get("KRONOS_KEEP") == "1"
    try:
        with LocalCluster(state, default_topology(), progress=display.say) as cluster:
            display.say("The cluster is ready: 2 racks, each of 2 nodes with 4 accelerator slots.")
            play(cluster, display)
            # Nothing may stop the clean-up half-way from here on.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 0
    except (BuildError, ClusterError, DemoError, UnsupportedPlatformError) as error:
        display.say(f"The demo failed. {error}")
        keep = True
        return 1
    except KeyboardInterrupt:
        display.say("Interrupted; everything that was started is stopped.")
        return 130
    finally:
        if keep:
            display.say(f"Logs: {state}")
        else:
            shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
