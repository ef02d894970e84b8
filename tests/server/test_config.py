from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from softmaxd_server.config import Config, parse, render, user_ids
from softmaxd_server.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SOFTMAXD_")]:
        monkeypatch.delenv(name)


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "softmaxd_server", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_config_without_flags_has_the_documented_defaults():
    config, print_config = parse([])
    assert not print_config
    assert (config.host, config.port, config.metrics_port) == ("127.0.0.1", 50051, 9464)
    assert (config.backend, config.threads, config.max_message_bytes) == ("auto", 0, 128 * 1024 * 1024)
    assert config.tuning is None


def test_config_with_flag_and_environment_takes_flag_then_environment_then_default(monkeypatch):
    monkeypatch.setenv("SOFTMAXD_PORT", "1")
    monkeypatch.setenv("SOFTMAXD_THREADS", "2")
    config, _ = parse(["--port", "3"])
    assert (config.port, config.threads, config.grace) == (3, 2, 30.0)


def test_config_takes_a_tuning_file_by_flag_and_by_environment(monkeypatch):
    assert parse(["--tuning", "a.json"])[0].tuning == Path("a.json")
    monkeypatch.setenv("SOFTMAXD_TUNING", "b.json")
    assert parse([])[0].tuning == Path("b.json")


@pytest.mark.parametrize("value", [["--allow-shared-memory"], ["--allow-shared-memory", "true"]])
def test_config_takes_a_switch_alone_and_with_a_value(value, monkeypatch):
    assert not parse([])[0].allow_shared_memory
    assert parse([*value, "--port", "1"])[0].allow_shared_memory
    monkeypatch.setenv("SOFTMAXD_ALLOW_SHARED_MEMORY", "true")
    assert parse([])[0].allow_shared_memory
    assert not parse(["--allow-shared-memory", "false"])[0].allow_shared_memory


@pytest.mark.parametrize(("text", "users"), [("", []), ("1000", [1000]), ("1000, 0,", [1000, 0])])
def test_user_ids_are_read_from_a_list(text, users):
    assert user_ids(text) == users


def test_config_once_made_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().port = 1  # type: ignore[misc] # the point of the test


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--prot", "1"], {}, ["--prot", "--help"]),
        (["--por", "1"], {}, ["--por"]),
        (["--port"], {}, ["--port", "expected one argument"]),
        (["--port", "70000"], {}, ["--port", "'70000'", "65535"]),
        (["--port", "-1"], {}, ["--port", "'-1'", "greater than or equal to 0"]),
        (["--backend", "tpu"], {}, ["--backend", "'tpu'", "'numpy'"]),
        (["--grace", "nan"], {}, ["--grace", "finite"]),
        (["--max-message-bytes", "0"], {}, ["--max-message-bytes", "1024"]),
        (["--port", "x", "--threads", "y"], {}, ["--port", "'x'", "--threads", "'y'"]),
        (["--allow-shared-memory", "perhaps"], {}, ["--allow-shared-memory", "'perhaps'", "boolean"]),
        (["--shared-memory-uids", "root"], {}, ["--shared-memory-uids", "'root'", "1000,1001"]),
        (["--unix-socket", "/" + "a" * 107], {}, ["--unix-socket", "107 bytes"]),
        (["--in-flight-bytes", "0"], {}, ["--in-flight-bytes", "4096"]),
        ([], {"SOFTMAXD_THREADS": "many"}, ["SOFTMAXD_THREADS", "'many'"]),
        ([], {"SOFTMAXD_PORT": "tcp://10.0.0.1:50051"}, ["SOFTMAXD_PORT", "enableServiceLinks"]),
    ],
)
def test_config_with_bad_input_says_where_and_what_in_one_paragraph(arguments, environment, said, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        parse(arguments)
    text = str(caught.value)
    assert "\n" not in text
    for part in said:
        assert part in text


def test_render_has_a_line_for_every_option():
    assert [line.partition(" = ")[0] for line in render(Config()).splitlines()] == list(Config.model_fields)


def test_print_config_of_the_command_shows_the_precedence_and_exits_0():
    done = _run("--print-config", "--port", "5", SOFTMAXD_PORT="6", SOFTMAXD_GRACE="7")
    assert done.returncode == 0
    assert "port = 5\n" in done.stdout
    assert "grace = 7.0\n" in done.stdout
    assert "threads = 0\n" in done.stdout
    assert done.stderr == ""


def test_unknown_flag_of_the_command_exits_2_without_traceback():
    done = _run("--prot", "5")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--prot" in done.stderr


def test_help_of_the_command_lists_every_flag():
    done = _run("--help")
    assert done.returncode == 0
    for name in Config.model_fields:
        assert "--" + name.replace("_", "-") in done.stdout
