"""Scripts that let a shell complete commands, one writer per shell.

In:  the specs of all commands, and the models known by name.
Out: the text of a script.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence

from headlong.cli.command_specs import Argument, CommandSpec

CommandSpecs = Sequence[CommandSpec]


def write_bash(specs: CommandSpecs, models: Sequence[str]) -> str:
    """Write the script for bash; where it has nothing to offer, bash completes file names."""
    cases = []
    for spec in specs:
        for option in spec.options:
            words = _words_of(option, models)
            # An option with a value is not followed by another option.
            offer = f"words={shlex.quote(words)};" if words else ":;"
            names = "|".join(f'"{spec.words} {name}"' for name in option.names)
            if option.value_kind != "nothing":
                cases.append(f"        {names}) {offer} is_value=1 ;;")
    firsts, options = [], []
    for spec in specs:
        first = _words_of(spec.positionals[0], models) if spec.positionals else ""
        subs = " ".join(_sub_verbs(spec, specs))
        firsts.append(f'        "{spec.words}") words={shlex.quote(f"{subs} {first}".strip())} ;;')
        names = " ".join(name for option in spec.options for name in option.names)
        options.append(f'        "{spec.words}") words={shlex.quote(names)} ;;')
    return _BASH.format(
        verbs=" ".join(_verbs(specs)),
        longer="|".join(f'"{spec.words}"' for spec in specs if " " in spec.words),
        values="\n".join(cases),
        firsts="\n".join(firsts),
        options="\n".join(options),
    )


_BASH = """\
# Made by `headlong completion bash`.
_headlong() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words="" is_value=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word"))
        return
    fi
    case "$command ${{COMP_WORDS[2]}}" in
        {longer}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;;
    esac
    case "$command $before" in
{values}
    esac
    if [ -z "$is_value" ]; then
        case "$word" in
            -*) case "$command" in
{options}
            esac ;;
            *) [ "$COMP_CWORD" -eq 2 ] && case "$command" in
{firsts}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _headlong headlong
"""


def write_zsh(specs: CommandSpecs, models: Sequence[str]) -> str:
    """Write the script for zsh, which shows what options are for."""
    cases = []
    for spec in specs:
        arguments = [text for option in spec.options for text in _zsh_options(option)]
        arguments += _zsh_positionals(spec, specs)
        joined = " \\\n                ".join(["_arguments -s", *arguments])
        cases.append(f"        ({shlex.quote(spec.words)})\n            {joined} ;;")
    verbs = [shlex.quote(f"{one.words}:{one.about}") for one in specs if " " not in one.words]
    return _ZSH.format(
        verbs="\n        ".join(verbs),
        models=" ".join(map(shlex.quote, models)),
        longer="|".join(shlex.quote(spec.words) for spec in specs if " " in spec.words),
        cases="\n".join(cases),
    )


_ZSH = """\
#compdef headlong
# Made by `headlong completion zsh`.
_headlong_models() {{
    local -a models=({models})
    _alternative 'models:model:compadd -a models' 'files:file:_files'
}}
_headlong() {{
    local -a verbs=(
        {verbs}
    )
    if (( CURRENT == 2 )); then
        _describe -t verbs verb verbs
        return
    fi
    local command="$words[2]"
    case "$words[2] $words[3]" in
        ({longer})
            if (( CURRENT > 3 )); then
                command="$words[2] $words[3]"
                shift words
                (( CURRENT-- ))
            fi ;;
    esac
    shift words
    (( CURRENT-- ))
    case "$command" in
{cases}
    esac
}}
if [ "$funcstack[1]" = "_headlong" ]; then _headlong "$@"; else compdef _headlong headlong; fi
"""


def _zsh_options(option: Argument) -> Iterator[str]:
    about = _escape(option.about)
    others = "*" if option.repeats else f"({' '.join(option.names)})"
    for name in option.names:
        value = "" if option.value_kind == "nothing" else f":value:{_zsh_action(option)}"
        yield shlex.quote(f"{others}{name}[{about}]{value}")


def _zsh_positionals(spec: CommandSpec, specs: CommandSpecs) -> Iterator[str]:
    subs = _sub_verbs(spec, specs)
    for place, positional in enumerate(spec.positionals, start=1):
        action = _zsh_action(positional)
        if place == 1 and subs:
            action = f"{{compadd {' '.join(subs)}; {'_files' if action == ' ' else action}}}"
        where = "*" if positional.repeats else f"{place}:"
        yield shlex.quote(f"{where}:{_escape(positional.about)}:{action}")


def _zsh_action(argument: Argument) -> str:
    """Return the completion of a value in the syntax of `_arguments`."""
    actions = {"choice": f"({' '.join(argument.choices)})", "model": "_headlong_models"}
    return actions.get(argument.value_kind, "_files" if argument.value_kind == "path" else " ")


def _escape(text: str) -> str:
    for letter in "\\[]:":
        text = text.replace(letter, f"\\{letter}")
    return text


def write_fish(specs: CommandSpecs, models: Sequence[str]) -> str:
    """Write the script for fish, which shows what options are for."""
    lines = ["# Made by `headlong completion fish`.", "complete -c headlong -f"]
    for spec in specs:
        verb, _, sub_verb = spec.words.partition(" ")
        seen = "__fish_seen_subcommand_from"
        subs = _sub_verbs(spec, specs)
        without = f"; and not {seen} {' '.join(subs)}" if subs else ""
        here = f"{seen} {verb}; and {seen} {sub_verb}" if sub_verb else f"{seen} {verb}{without}"
        outside = (
            f"{seen} {verb}; and not {seen} {sub_verb}" if sub_verb else "__fish_use_subcommand"
        )
        lines.append(_fish(outside, f"-a {sub_verb or verb}", spec.about))
        for option in spec.options:
            dashes = {True: "-l ", False: "-s "}
            names = " ".join(dashes[one.startswith("--")] + one.lstrip("-") for one in option.names)
            lines.append(_fish(here, f"{names}{_fish_value(option, models)}", option.about))
        for positional in spec.positionals[:1]:
            words = _words_of(positional, models)
            lines += [_fish(here, f"-a {shlex.quote(words)}", "")] if words else []
            lines += [_fish(here, "-F", "")] if positional.value_kind in ("model", "path") else []
    return "\n".join([*lines, ""])


def _fish(condition: str, what: str, about: str) -> str:
    told = f" -d {shlex.quote(about)}" if about else ""
    return f"complete -c headlong -n {shlex.quote(condition)} {what}{told}"


def _fish_value(option: Argument, models: Sequence[str]) -> str:
    words = _words_of(option, models)
    values = f" -a {shlex.quote(words)}" if words else ""
    kinds = {"nothing": "", "model": " -r -F", "path": " -r -F"}
    return kinds.get(option.value_kind, " -x") + values


def _words_of(argument: Argument, models: Sequence[str]) -> str:
    """Return the values there are names for."""
    return " ".join(models if argument.value_kind == "model" else argument.choices)


def _verbs(specs: CommandSpecs) -> list[str]:
    return [spec.words for spec in specs if " " not in spec.words]


def _sub_verbs(verb: CommandSpec, specs: CommandSpecs) -> list[str]:
    begin = f"{verb.words} "
    return [one.words.removeprefix(begin) for one in specs if one.words.startswith(begin)]


WRITERS: dict[str, Callable[[CommandSpecs, Sequence[str]], str]] = {
    "bash": write_bash,
    "zsh": write_zsh,
    "fish": write_fish,
}
"""The writer for each shell."""
