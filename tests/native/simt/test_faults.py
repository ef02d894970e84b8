"""Faults planted into GPU kernels that run on the CPU: each is found, by the sanitizer or the order that should."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "native"
GXX = shutil.which("g++")
INCLUDES = [f"-I{NATIVE / 'src'}", f"-I{NATIVE / 'include'}", f"-I{HERE}"]
FLAGS = ["-g", "-O1", "-std=c++20", "-Wall", "-Werror", "-pthread", "-DSOFTMAXD_SIMT", "-x", "c++"]
WAVES = (32, 64)
SEEDS = range(1, 11)

NONE = ""
ADDRESS = "address,undefined"
THREAD = "thread"

# Exit codes of faults.hip.
WRONG = 10
REFUSED = 11

Ran = subprocess.CompletedProcess[str]
RunFaults = Callable[..., Ran]

pytestmark = pytest.mark.skipif(not GXX, reason="g++ is not installed")


def compile_program(source: Path, to: Path, sanitizers: str, *flags: str) -> Ran:
    assert GXX
    sanitize = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"] if sanitizers else []
    command = [GXX, *sanitize, *flags, *INCLUDES, *FLAGS, str(source), "-o", str(to)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def run_faults(tmp_path_factory: pytest.TempPathFactory) -> RunFaults:
    """Return a function that runs faults.hip, which is compiled once for each set of sanitizers and wave."""
    folder = tmp_path_factory.mktemp("simt")

    @cache
    def reason_against(sanitizers: str) -> str:
        source = folder / "empty.cpp"
        source.write_text("int main() {}")
        program = folder / "empty"
        compiled = compile_program(source, program, sanitizers)
        if compiled.returncode != 0:
            return f"g++ cannot link -fsanitize={sanitizers}: {compiled.stderr}"
        ran = subprocess.run([program], capture_output=True, text=True, check=False)
        return f"-fsanitize={sanitizers} does not run here: {ran.stderr}" if ran.returncode != 0 else ""

    @cache
    def program_for(sanitizers: str, wave: int, *flags: str) -> Path:
        if reason := reason_against(sanitizers):
            pytest.skip(reason)
        program = folder / "-".join(["faults", sanitizers, str(wave), *flags])
        compiled = compile_program(HERE / "faults.hip", program, sanitizers, f"-DSIMT_WAVE={wave}", *flags)
        assert compiled.returncode == 0, compiled.stderr
        return program

    def run(fault: str, sanitizers: str, wave: int, *flags: str, seed: int | None = None) -> Ran:
        environment = {name: value for name, value in os.environ.items() if name != "SIMT_SEED"}
        environment["TSAN_OPTIONS"] = "atexit_sleep_ms=0"  # or each run takes a second longer
        if seed is not None:
            environment["SIMT_SEED"] = str(seed)
        command = [str(program_for(sanitizers, wave, *flags)), fault]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize("sanitizers", [NONE, ADDRESS, THREAD])
def test_kernels_without_a_fault_are_right_and_clean(
    run_faults: RunFaults, sanitizers: str, wave: int, seed: int | None
) -> None:
    ran = run_faults("none", sanitizers, wave, seed=seed)
    assert (ran.returncode, ran.stderr) == (0, "")


# What other processors than x86-64 switch by.
@pytest.mark.parametrize("sanitizers", [NONE, ADDRESS, THREAD])
def test_kernels_without_a_fault_on_ucontext_are_right_and_clean(run_faults: RunFaults, sanitizers: str) -> None:
    ran = run_faults("none", sanitizers, 64, "-DSIMT_UCONTEXT", seed=1)
    errors = [line for line in ran.stderr.splitlines() if "doesn't fully support makecontext" not in line]
    assert (ran.returncode, errors) == (0, [])


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("read_before_written", "read_before_written"),
        ("written_before_read", "sum_by_tree"),
        ("written_before_read_by_waves", "sum_by_waves"),
        ("shuffle_for_barrier", "shuffle_for_barrier"),
        ("blocks_not_waited_for", "(give|sum_of_given)"),
        ("written_before_read_by_blocks", "(give|sum_of_given)"),
        ("relaxed_for_release", "sum_of_given"),
        ("relaxed_for_acquire", "sum_of_given"),
        ("static_shared_together", "static_shared_together"),
    ],
)
def test_missing_order_in_any_order_is_a_data_race(
    run_faults: RunFaults, fault: str, where: str, wave: int, seed: int | None
) -> None:
    ran = run_faults(fault, THREAD, wave, seed=seed)
    assert ran.returncode not in {0, WRONG}
    assert "WARNING: ThreadSanitizer: data race" in ran.stderr
    assert re.search(rf"SUMMARY: ThreadSanitizer: data race .*faults\.hip:\d+ in .*{where}", ran.stderr)


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    "fault",
    [
        "read_before_written",
        "written_before_read",
        "written_before_read_by_waves",
        "blocks_not_waited_for",
        "written_before_read_by_blocks",
    ],
)
def test_missing_wait_in_random_order_gives_wrong_results(run_faults: RunFaults, fault: str, wave: int) -> None:
    ran = [run_faults(fault, NONE, wave, seed=seed) for seed in SEEDS]
    assert [program.returncode for program in ran] == [WRONG for _ in SEEDS]


@pytest.mark.parametrize("wave", WAVES)
def test_missing_barrier_after_the_first_thread_shows_in_no_plain_order(run_faults: RunFaults, wave: int) -> None:
    assert run_faults("read_before_written", NONE, wave).returncode == 0


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("shared_past_end", r"AddressSanitizer: global-buffer-overflow .*\n(.*\n)*.*of global variable 'shared'"),
        ("dynamic_shared_past_end", r"AddressSanitizer: heap-buffer-overflow .*\n(.*\n)*.*in dynamic_shared_past_end"),
        ("global_past_end", r"AddressSanitizer: heap-buffer-overflow .*\n(.*\n)*.*in global_past_end"),
        ("misaligned_vector", r"runtime error: .* misaligned address .* requires 16 byte alignment"),
    ],
)
def test_bad_address_is_reported_by_its_kind(run_faults: RunFaults, fault: str, report: str, wave: int) -> None:
    ran = run_faults(fault, ADDRESS, wave)
    assert ran.returncode not in {0, WRONG}
    assert re.search(report, ran.stderr)
    assert re.search(r"faults\.hip:\d+", ran.stderr)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    ("fault", "whose", "places"),
    [
        ("barrier_in_branch", {32: "of wave 3 ", 64: "of wave 1 "}, {"barrier", "returned"}),
        ("barrier_in_branch_together", {32: "of wave 3 ", 64: "of wave 1 "}, {"barrier", "returned"}),
        ("barrier_of_some_waves", {32: "", 64: ""}, {"barrier", "returned"}),
        ("shuffle_in_branch", {32: "of wave 0 ", 64: "of wave 0 "}, {"shuffle", "barrier"}),
        ("shuffles_in_branches", {32: "of wave 0 ", 64: "of wave 0 "}, {"shuffle"}),
    ],
)
def test_threads_that_do_not_meet_end_the_program_with_one_line(
    run_faults: RunFaults, fault: str, whose: dict[int, str], places: set[str], wave: int, seed: int | None
) -> None:
    ran = run_faults(fault, NONE, wave, seed=seed)
    assert ran.returncode == -signal.SIGABRT
    place = r"\d+ (?:wait at a (barrier|shuffle) \(\S+faults\.hip:\d+\)|have (returned))"
    line = re.fullmatch(rf"simt: block \d: the threads {whose[wave]}do not meet: {place}, {place}\n", ran.stderr)
    assert line, ran.stderr
    assert {kind for kind in line.groups() if kind} == places


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    ("fault", "blocks", "at_barrier"), [("blocks_wait_for_one_more", 4, 1020), ("block_does_not_come", 3, 765)]
)
def test_blocks_that_wait_for_ever_end_the_program_with_one_line(
    run_faults: RunFaults, fault: str, blocks: int, at_barrier: int, wave: int, seed: int | None
) -> None:
    ran = run_faults(fault, NONE, wave, seed=seed)
    assert ran.returncode == -signal.SIGABRT
    pause = rf"{blocks} pause \(\S+faults\.hip:\d+\)"
    barrier = rf"{at_barrier} wait at a barrier \(\S+faults\.hip:\d+\)"
    places = rf"({pause}, {barrier}|{barrier}, {pause})"
    assert re.fullmatch(rf"simt: {blocks} blocks wait for each other for ever: {places}\n", ran.stderr), ran.stderr


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize("fault", ["shuffle_with_returned", "dynamic_shared_not_written", "static_shared_together"])
def test_value_that_no_thread_gave_is_a_wrong_result(
    run_faults: RunFaults, fault: str, wave: int, seed: int | None
) -> None:
    assert run_faults(fault, NONE, wave, seed=seed).returncode == WRONG


def test_wave_taken_to_be_64_lanes_wide_is_wrong_at_32_only(run_faults: RunFaults) -> None:
    assert [run_faults("wave_of_64", NONE, wave).returncode for wave in (32, 64)] == [WRONG, 0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wave", WAVES)
def test_lanes_of_a_wave_meet_at_a_shuffle_in_any_order(run_faults: RunFaults, wave: int, seed: int) -> None:
    assert run_faults("shuffle_for_barrier", NONE, wave, seed=seed).returncode == 0


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(
    "fault", ["too_many_threads", "too_many_blocks", "too_many_threads_together", "too_much_shared"]
)
def test_launch_that_no_device_takes_is_refused(run_faults: RunFaults, fault: str, wave: int) -> None:
    ran = run_faults(fault, NONE, wave)
    assert (ran.returncode, ran.stderr) == (REFUSED, f"{fault}: launch refused\n")
