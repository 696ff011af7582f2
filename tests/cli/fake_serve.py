"""A stand-in for `raftmq serve`: reports as a node does, and does what its settings file says.

Words in the file: `exit` ends it at once with 3 and last words on stderr; `deaf` ignores SIGTERM.
At SIGHUP it reports that it has renewed its certificates.
"""

import signal
import sys
import time
from pathlib import Path

from raftmq.cli.node.notify import notify


def main() -> None:
    """Live until SIGTERM."""
    words = Path(sys.argv[sys.argv.index("-c") + 1]).read_text()
    if "exit" in words:
        print("the disk is on fire", file=sys.stderr)
        sys.exit(3)
    handler = signal.SIG_IGN if "deaf" in words else lambda *_: sys.exit(0)
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGHUP, lambda *_: notify("STATUS=renewed"))
    notify("READY=1", "STATUS=follows")
    notify("STATUS=leads group 2" if "lone" in words else "STATUS=leads groups 0, 1")
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
