"""The program of the embedded broker's process; it ends when its standard input closes.

It is run by path and imports nothing of fleet, so that it starts fast and small.
"""

import logging
import os
import sys
import tempfile
import threading
from pathlib import Path

from iotcore import Broker


def main() -> None:
    """Runs the broker that the first argument, rumqttd's TOML, describes."""
    # rumqttd reports every packet as an error; only its death matters, and its parent sees that.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    # The parent holds the other end: however it dies, the pipe closes.
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="ciar-broker-") as folder:
        file = Path(folder) / "rumqttd.toml"
        file.write_text(sys.argv[1])
        broker = Broker(config_path=str(file))
    broker.run_forever()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
