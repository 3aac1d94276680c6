"""What a log line may cost."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

LINES = """
import resource, structlog
from services.log import configure_logging
configure_logging("info", "json")
log = structlog.get_logger()
log.info("first")
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for number in range(1000):
    log.info("nowhere to go", number=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("last")
print("went on")
"""


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY, "as on any usual machine"
    path = tmp_path / "log"
    with path.open("wb") as log:
        done = subprocess.run([sys.executable, "-c", LINES], stdout=subprocess.PIPE, stderr=log, check=False)
    assert done.stdout == b"went on\n"
    assert done.returncode == 0
    assert '"first"' in path.read_text()
    assert '"last"' in path.read_text()
