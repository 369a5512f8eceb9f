"""The family table: its rows are of known architectures, and switches survive a config."""

from headlong.heads.nextn_families import FAMILIES, NextnSwitches, read_switches, write_switches


def test_mimo_reads_the_hidden_state_first() -> None:
    assert FAMILIES["mimo"].switches == NextnSwitches("hidden_first", first_embedding="zeroed")
    assert FAMILIES["qwen35"].switches == NextnSwitches()


def test_switches_survive_a_config() -> None:
    switches = NextnSwitches("hidden_first", "raw", "raw", "one_plus", "zeroed")
    assert read_switches({"nextn": write_switches(switches)}, "head") == switches
