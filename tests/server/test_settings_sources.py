from dataclasses import asdict
from pathlib import Path

import pytest

from headlong.errors import RequestError
from headlong.server.settings import ServerSettings
from headlong.server.settings_sources import EffectiveSettings, read_settings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "headlong.toml"


def write(path: Path, text: str) -> str:
    """Write a settings file and return its name."""
    path.write_text(text)
    return str(path)


def source_of(effective: EffectiveSettings, name: str) -> str:
    """Return where the value of a setting came from."""
    return effective.sources[name]


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", 'port = 1\nhost = "h.example"\nmax_running = 7\n')
    environ = {"HEADLONG_PORT": "2", "HEADLONG_HOST": "env.example"}
    effective = read_settings({"config": config, "port": "3"}, environ)
    assert effective.settings.port == 3
    assert effective.settings.host == "env.example"
    assert effective.settings.max_running == 7
    assert effective.settings.max_waiting == ServerSettings().max_waiting
    assert source_of(effective, "port") == "--port"
    assert source_of(effective, "host") == "HEADLONG_HOST"
    assert source_of(effective, "max_running") == config
    assert source_of(effective, "max_waiting") == "default"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", "port = 4711\n")
    assert read_settings({}, {"HEADLONG_CONFIG": config}).settings.port == 4711


def test_an_empty_variable_says_nothing() -> None:
    assert read_settings({}, {"HEADLONG_PORT": ""}).settings.port == ServerSettings().port


def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", 'port = "many"\n')
    for flags, environ, place in (
        ({"port": "many"}, {}, "--port is 'many'"),
        ({}, {"HEADLONG_PORT": "many"}, "HEADLONG_PORT is 'many'"),
        ({"config": config}, {}, f"port in {config} is 'many'"),
    ):
        with pytest.raises(RequestError) as refusal:
            read_settings(flags, environ)
        assert place in refusal.value.problem
        assert "from 0 to 65535" in refusal.value.remedy


def test_an_unknown_key_of_the_file_is_refused_with_its_neighbour(tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", "max_wating = 3\n")
    with pytest.raises(RequestError, match="unknown setting 'max_wating'") as refusal:
        read_settings({"config": config}, {})
    assert refusal.value.remedy == "Did you mean 'max_waiting'?"
    config = write(tmp_path / "i.toml", "tls = true\n")
    with pytest.raises(RequestError, match="'tls'") as refusal:
        read_settings({"config": config}, {})
    assert "max_waiting" in refusal.value.remedy


def test_a_misspelt_variable_is_told() -> None:
    environ = {"HEADLONG_MAX_WATING": "3", "HEADLONG_CACHE": "/tmp", "HEADLONG_THREADS": "2"}
    (note,) = read_settings({}, environ).notes
    assert "HEADLONG_MAX_WATING" in note
    assert "did you mean HEADLONG_MAX_WAITING?" in note


def test_options_of_a_model_that_engines_run_are_told_to_do_nothing() -> None:
    environ = {"HEADLONG_BACKEND": "numpy", "HEADLONG_ENGINE": "vllm"}
    (note,) = read_settings({}, environ).notes
    assert note == "backend (HEADLONG_BACKEND) does nothing: vllm decides that itself."


@pytest.mark.parametrize("text", ["port = ", "[server", 'port = "\xff"'])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError, match=r"h\.toml"):
        read_settings({"config": str(path)}, {})
    with pytest.raises(RequestError, match="No such file"):
        read_settings({"config": str(tmp_path / "nowhere.toml")}, {})


def test_keys_of_all_sources_add_up(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("# ours\nalice  secret-of-alice\nsecret-without-name # bob's\n\n")
    config = write(
        tmp_path / "h.toml",
        '[[api_keys]]\nname = "ci"\nkey_env = "CI_SECRET"\nmtp = 4\nmax_concurrent = 2\n'
        '[[api_keys]]\nkey = "secret-in-toml"\nmtp = "off"\n',
    )
    flags = {"config": config, "api_key": ["secret-flag"], "api_key_file": str(keys)}
    environ = {"HEADLONG_API_KEY": "secret-env-1, secret-env-2", "CI_SECRET": "secret-of-ci"}
    effective = read_settings(flags, environ)
    found = {key.name: key for key in effective.settings.api_keys}
    assert {name: key.key for name, key in found.items()} == {
        "flag-1": "secret-flag",
        "env-1": "secret-env-1",
        "env-2": "secret-env-2",
        "alice": "secret-of-alice",
        "keys-3": "secret-without-name",
        "ci": "secret-of-ci",
        "key-2": "secret-in-toml",
    }
    assert (found["ci"].mtp, found["ci"].max_concurrent) == (4, 2)
    assert (found["key-2"].mtp, found["alice"].mtp) == ("off", None)
    shown = "\n".join(f"{name} {value} {source}" for name, value, source in effective.shown())
    assert "secret" not in shown
    assert f"API key ci (hidden), mtp 4, 2 at one time {config}" in shown
    assert "API key env-2 (hidden) HEADLONG_API_KEY" in shown


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ('name = "a"', "has no key"),
        ('key = "secret-1"\nkey_env = "X"', "has key and key_env"),
        ('key = "secret-1"\nmtpp = "off"', "has 'mtpp'"),
        ('key = "secret-1"\nmtp = 99', "mtp of [[api_keys]] number 1"),
        ('key = "short"', "has 5 characters"),
        ('key_env = "NOT_SET"', "NOT_SET, which is not set"),
        ('key_file = "/nowhere/at/all"', "cannot be read"),
        ('key = "secret-1"\nname = "a b"', "name of [[api_keys]] number 1"),
    ],
)
def test_a_wrong_key_table_is_refused(tmp_path: Path, table: str, complaint: str) -> None:
    config = write(tmp_path / "h.toml", f"[[api_keys]]\n{table}\n")
    with pytest.raises(RequestError) as refusal:
        read_settings({"config": config}, {})
    assert complaint in refusal.value.problem
    assert "secret-1" not in str(refusal.value)


def test_one_bracket_is_explained(tmp_path: Path) -> None:
    config = write(tmp_path / "h.toml", '[api_keys]\nkey = "secret-1"\n')
    with pytest.raises(RequestError, match="two brackets"):
        read_settings({"config": config}, {})


def test_the_example_in_deploy_loads() -> None:
    assert read_settings({"config": str(EXAMPLE)}, {}).settings == ServerSettings()


def test_the_examples_commented_settings_load_too(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("\n#: ", "\n")
    config = write(tmp_path / "all.toml", text)
    effective = read_settings({"config": config}, {"HEADLONG_KEY_CI": "only-for-the-test"})
    assert [key.name for key in effective.settings.api_keys] == ["ci"]
    assert set(effective.sources.values()) == {config}, "a setting is missing in the example"
    changed = {"model", "api_keys"}
    for name, shown in asdict(ServerSettings()).items():
        if name not in changed:
            assert getattr(effective.settings, name) == shown, f"{name}: not the default"
