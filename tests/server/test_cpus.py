from __future__ import annotations

import os

import pytest
from softmaxd_server.cpus import usable_cpus

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CPUS),
        ({"cpu.max": "max 100000\n"}, CPUS),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "100000000 100000\n"}, CPUS),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CPUS),
        ({"cpu/cpu.cfs_quota_us": "20000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
    ids=["no_cgroup", "v2_unlimited", "v2_half", "v2_one", "v2_more_than_there_are", "v1_unlimited", "v1_fifth"],
)
def test_usable_cpus_under_quota_is_the_smaller_of_quota_and_affinity(tmp_path, files, expected):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert usable_cpus(tmp_path) == expected
