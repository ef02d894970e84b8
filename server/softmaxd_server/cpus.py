"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Return the CPUs that the affinity mask and the cgroup's quota leave, at least 1.

    More threads than the quota allows are throttled together for the rest of a period, which shows as latency spikes.

    Args:
        cgroup: Where the cgroup file system is mounted.
    """
    quota = _quota(cgroup)
    allowed = len(os.sched_getaffinity(0))
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in CPUs, of cgroup v2 or else v1; None where there is none."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if limit in ("max", "-1"):
        return None
    return int(limit) / int(period)
