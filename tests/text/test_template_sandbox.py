"""Templates speak Hugging Face's dialect, and cannot run away with the machine."""

import tracemalloc
from datetime import datetime

import pytest

from headlong.errors import TextError
from headlong.text.template_bounds import MAX_TEXT
from headlong.text.template_sandbox import BoundedTemplate


def render(source: str, **variables: object) -> str:
    return BoundedTemplate(source).render(variables)


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
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ lipsum(n=10 ** 10) }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ],
)
def test_runaway_template_ends_in_an_error(source: str, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10 ** 10 ** 10 }}",
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
        "{% set x %}{% for i in range(99999) %}" + "a" * 999 + "{% endfor %}{% endset %}",
    ],
)
def test_template_cannot_fill_memory(source: str) -> None:
    with pytest.raises(TextError, match="characters of memory"):
        render(source)


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
        "{{ ('\n' * 1000000) | indent('b' * 1000000) }}",
        "{{ ('\n' * 1000000) | indent(1000000) }}",
        "{{ [1, 2] | tojson(indent='b' * 1000000) }}",
        BIG + "{{ big | wordwrap(1, true, big) }}",
        "{% set n = namespace(i=9) %}{% for i in range(60) %}{% set n.i = n.i * n.i %}{% endfor %}",
    ],
)
def test_shared_elements_are_counted_as_often_as_they_are_written(source: str) -> None:
    """A small list may hold a large text many times; the whole is refused before it is built."""
    tracemalloc.start()
    try:
        with pytest.raises(TextError):
            render(source)
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
