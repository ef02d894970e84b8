from __future__ import annotations

import subprocess
import sys

import pytest

# Frees 64 MB and takes them again; prints how many pages that cost the second time.
_SCRIPT = """
import resource, sys
from softmaxd_server.malloc import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory(1 << 30)
size = 64 << 20
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(size)
    del block
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


def _faults(how):
    done = subprocess.run([sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the settings are the GNU C library's")
def test_kept_memory_is_used_again_without_new_pages():
    assert _faults("leave") > 1000
    assert _faults("keep") < 100
