"""Templates speak Hugging Face's dialect, and cannot run away with the machine."""

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import pytest

from headlong.errors import TextError
from headlong.text.template_sandbox import MAX_MEMORY, MAX_TEXT, BoundedTemplate, TemplateProcess


def render(source: str, **variables: object) -> str:
    return BoundedTemplate(source).render(variables)


@pytest.fixture(scope="module")
def impatient() -> Iterator[TemplateProcess]:
    """A process that waits half a second, so that hostile templates end sooner."""
    process = TemplateProcess(max_seconds=0.5)
    yield process
    process.stop()


def render_within(process: TemplateProcess, source: str) -> str:
    return BoundedTemplate(source, process).render({})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\n{% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),  # trim_blocks, lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'k': '<é&>'} | tojson }}", '{"k": "<é&>"}'),
        ("{{ {'k': [1]} | tojson(indent=2) }}", '{\n  "k": [\n    1\n  ]\n}'),
        ("{{ {'k': 1} | tojson(separators=(',', ':')) }}", '{"k":1}'),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'a-b' | replace('-', '+') }}", "a, ba+b"),
        ("{{ 'a-b'.replace('-', '+') }}{{ ', '.join(['a', 'b']) }}", "a+ba, b"),
        (
            "{{ '%s|%d' | format('a', 3) }}{{ '%5.1f' % 2 }}{{ '**{:>3}**'.format(1) }}",
            "a|3  2.0**  1**",
        ),
        ("{{ 1731628800 }}{{ 3 * 'ab' }}{{ 6 * 7 }}{{ 2 ** 10 }}", "1731628800ababab421024"),
        ("{{ missing }}{% if missing is defined %}x{% endif %}.", "."),
        (
            "{% set n = namespace(s=0) %}{% for i in [7] %}{% set n.s = i %}{% endfor %}{{ n.s }}",
            "7",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}", "<a>"),
        ("{{ ['a', 1, none] }}{{ none }}", "['a', 1, None]None"),
        ("{{ ['a', 'b'] | map('upper') | join }}{{ '-'.join(['a'] | map('upper')) }}", "ABA"),
        ("{{ 'a\nb' | indent }}{{ 'a\nb' | indent('> ') }}", "a\n    ba\n> b"),
        (
            "{{ 'a' ~ [1] ~ 2 }}{{ [1] * 2 }}{{ 2.5 * 2 }}{{ '%s,%s' % ('a', 1) }}",
            "a[1]2[1, 1]5.0a,1",
        ),
    ],
)
def test_dialect_of_hugging_face_templates(source: str, expected: str) -> None:
    assert render(source) == expected


def test_today_is_known_to_templates() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_outside_names_are_known_without_running() -> None:
    source = "{% set own = 1 %}{% for m in messages %}{{ own }}{{ tools }}{% endfor %}"
    assert BoundedTemplate(source).variables == {"messages", "tools"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "more than 0.5 seconds",
        ),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ lipsum(n=10 ** 10) }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ],
)
def test_runaway_template_ends_in_an_error(
    source: str, reason: str, impatient: TemplateProcess
) -> None:
    with pytest.raises(TextError, match=reason):
        render_within(impatient, source)


GROW_TWO_LISTS = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
FOR_LONG = "{% for i in range(99999) %}{% for j in range(99999) %}"
END = "{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        GROW_TWO_LISTS + "{{ ns.x == ns.y }}",
        GROW_TWO_LISTS + "{{ [ns.x, ns.y] | sort }}",
        GROW_TWO_LISTS + "{{ ns.x in [ns.y] }}",
        "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = -1 in range(99999) | list %}{% endfor %}",
        "{% set s = 'ab' * 999999 %}{% for i in range(99999) %}{{ s.count('ba') }}{% endfor %}",
        "{% set s = 'a ' * 99999 %}{% for i in range(9999) %}{% set x = s.split() %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{% if a %}b{% endif %}" * 100_000,
    ],
    ids=lambda source: source[-40:],
)
def test_template_that_would_run_for_very_long_is_stopped(
    source: str, impatient: TemplateProcess
) -> None:
    began_s = time.monotonic()
    with pytest.raises(TextError, match=r"took more than 0\.5 seconds|broke off its process"):
        render_within(impatient, source)
    assert time.monotonic() - began_s < 10  # the machine may be busy
    assert render_within(impatient, "{{ 1 }}") == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a'.encode().ljust(10 ** 10) }}",
        "{{ (1).to_bytes(10 ** 10) }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a\nb' | indent(10 ** 10) }}",
        "{{ [1] | batch(10 ** 10, 'x') | list }}",
        "{{ {'a': 1} | tojson(indent=10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=10 ** 10) }}",
        "{% set s = 'a' * 1000000 %}{{ s | replace('a', s) }}",
        "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}",
        "{% set s = 'a' * 1000000 %}{{ range(99999) | join(s) }}",
        "{% set s = 'a' * 1000000 %}{{ s.join(['b'] * 99999) }}",
        "{% set n = namespace(s=1) %}{% for i in '.' * 40 %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = n.s+n.s %}{% endfor %}",
        "{% set s = 'a' * 999999 %}{% set x %}{% for i in s %}{{ s }}{% endfor %}{% endset %}",
        "{% set x %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endset %}",
    ],
)
def test_template_cannot_fill_memory(source: str, impatient: TemplateProcess) -> None:
    with pytest.raises(TextError, match=r"more than (512 MB of memory|0\.5 seconds)\."):
        render_within(impatient, source)


BIG = "{% set big = 'a' * 1000000 %}{% set many = [big] * 10000 %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ (['a' * 1000000] * 1000000) | join }}",
        "{{ ''.join(['a' * 1000000] * 1000000) }}",
        BIG + "{{ many | join }}",
        BIG + "{{ ''.join(many) }}",
        BIG + "{{ ''.join(many | map('upper')) }}",
        BIG + "{{ many | string }}",
        BIG + "{{ many | upper }}",
        BIG + "{{ many | tojson }}",
        BIG + "{{ many }}",
        BIG + "{{ {'k': many}.values() }}",
        BIG + "{{ namespace(k=many) }}",
        BIG + "{% set x = 'a' ~ many %}",
        BIG + "{{ [[[1] * 10000] * 10000] * 10000 }}",
        BIG + "{{ ([many] * 10000) | sum(start=[]) }}",
        BIG + "{{ ('%s' * 10000) % ((big,) * 10000) }}",
        BIG + "{{ ('%(k)s' * 10000) % {'k': big} }}",
        BIG + "{{ ('%(k)s' * 10000) | format(k=big) }}",
        BIG + "{{ ('{0}' * 10000).format(big) }}",
        BIG + "{{ ('{0}' * 10000)['format'](big) }}",
        "{{ ('%s' * 1000000) % (('a' * 1000000,) * 1000000) }}",
        "{{ ('%(k)99999d' * 10000) % {'k': 1} }}",
        "{{ ('{0:99999}' * 10000).format(1) }}",
        "{{ ('\t' * 1000000).expandtabs(1000000) }}",
        "{{ ('\t' * 1000000).encode().expandtabs(1000000) }}",
        BIG + "{{ big.translate({97: big}) }}",
        "{{ ('\n' * 1000000) | indent('b' * 1000000, blank=true) }}",
        "{{ ('\n' * 1000000) | indent(1000000, blank=true) }}",
        "{{ ([1] * 9999) | tojson(indent='b' * 1000000) }}",
        BIG + "{{ big | wordwrap(1, true, big) }}",
        "{% set n = namespace(i=9) %}{% for i in range(60) %}{% set n.i = n.i * n.i %}{% endfor %}",
    ],
)
def test_shared_elements_do_not_fill_memory(source: str, impatient: TemplateProcess) -> None:
    """A small list may hold a large text many times; written out, it takes more than there is."""
    tracemalloc.start()
    try:
        with pytest.raises(TextError):
            render_within(impatient, source)
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**25
    finally:
        tracemalloc.stop()


def test_text_just_within_the_bound_is_written() -> None:
    assert len(render("{{ 'a' * n }}", n=MAX_TEXT)) == MAX_TEXT
    with pytest.raises(TextError, match="memory"):
        render("{{ 'a' * n }}{{ 'a' }}", n=MAX_TEXT)


def test_templates_objection_keeps_its_words() -> None:
    with pytest.raises(TextError, match=r"refuses these messages: Only users\. "):
        render("{{ raise_exception('Only users') }}")


def test_failure_inside_a_template_is_named() -> None:
    with pytest.raises(TextError, match="TypeError"):
        render("{{ 1 + 'a' }}")


def test_templates_cannot_change_what_they_are_given() -> None:
    messages = ["a"]
    with pytest.raises(TextError):
        render("{{ messages.append('b') }}", messages=messages)
    assert messages == ["a"]


def test_memory_of_the_process_stays_bounded() -> None:
    """Read while a template takes all it can get: the system itself counts."""
    process = TemplateProcess(max_seconds=5)
    render_within(process, "{{ 1 }}")
    status = Path(f"/proc/{process.process_id}/status")
    peaks = [0]

    def watch() -> None:
        while status.exists():
            try:
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                peaks.append(int(lines.get("VmHWM", "0").split()[0]) * 1024)
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    grow = "{% set n = namespace(s=['a']) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}"
    with pytest.raises(TextError, match="512 MB of memory"):
        render_within(process, grow + "{% endfor %}")
    watcher.join()
    assert 2**25 < max(peaks) <= MAX_MEMORY


def test_interrupt_ends_the_wait_at_once() -> None:
    """Ctrl-C while a template hangs; its late answer is never taken for the next one's."""
    process = TemplateProcess(max_seconds=60)
    template = BoundedTemplate(FOR_LONG + END + "late", process)
    began_s = time.monotonic()
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        template.render({})
    assert time.monotonic() - began_s < 30
    assert render_within(process, "next") == "next"
    process.stop()


def test_other_threads_run_while_a_template_hangs(impatient: TemplateProcess) -> None:
    errors: list[Exception] = []

    def hang() -> None:
        try:
            render_within(impatient, GROW_TWO_LISTS + "{{ ns.x == ns.y }}")
        except TextError as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    num_turns = 0
    while thread.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert num_turns > 20
    assert len(errors) == 1


def test_process_that_was_ended_from_outside_is_started_again(impatient: TemplateProcess) -> None:
    assert render_within(impatient, "a") == "a"
    first = impatient.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert render_within(impatient, "b") == "b"
    assert impatient.process_id != first


def test_forked_process_renders_by_itself(impatient: TemplateProcess) -> None:
    """Guards against mixed-up answers: two processes must never share one pipe."""
    render_within(impatient, "a")
    first = impatient.process_id
    child = os.fork()
    if child == 0:
        impatient.stop()  # as at its exit; the parent's stays
        is_own = render_within(impatient, "b") == "b" and impatient.process_id != first
        impatient.stop()
        os._exit(0 if is_own else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert render_within(impatient, "c") == "c"
    assert impatient.process_id == first


def test_process_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TextError, match="cannot be started"):
        BoundedTemplate("a", TemplateProcess())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TextError, match="ended with 1"):
        BoundedTemplate("a", TemplateProcess())


def test_process_ends_with_the_one_that_started_it() -> None:
    script = (
        "from headlong.text import template_sandbox as t\n"
        "t.BoundedTemplate('a').render({})\n"
        "print(t._shared.process_id, flush=True)\n"
        "import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_any_mapping_and_half_a_surrogate_pair_reach_the_template() -> None:
    assert render("{{ m.a }}{{ m.b[0] }}", m=MappingProxyType({"a": "\ud800é", "b": (1,)})) == (
        "\ud800é1"
    )
    with pytest.raises(TextError, match="cannot be written as JSON"):
        render("{{ m }}", m=object())
