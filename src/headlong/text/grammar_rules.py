"""Rules of grammars, in llguidance's Lark: calls, answers, and the reasoning before them.

In:  how a model writes calls and reasoning, and what it may say.
Out: lines of a grammar. What schemas mean and how grammars are compiled is known in `grammar.py`.
"""

import json
import re
from collections.abc import Sequence

from headlong.text.reasoning import Beginning, Reasoning
from headlong.text.tools import ToolChoice, ToolStyle

HEADER = "%llguidance {}"


def behind_reasoning(source: str, reasoning: Reasoning | None) -> str:
    """Return a grammar that lets a model reason freely and begins behind that.

    `source` is a grammar or a JSON schema. Nothing but the closing tag ends reasoning: not the end
    of text, since an answer was asked for.
    """
    if reasoning is None or reasoning.beginning is Beginning.ANSWER:
        return source
    if source.startswith("{"):
        source = f"{HEADER}\nstart: %json {source}"
    tags, is_inside = reasoning.tags, reasoning.beginning is Beginning.REASONING
    opening = "" if is_inside else rf"/\s*/ {json.dumps(tags.start)} "
    rules = [
        "start: reasoned GAP? body" + ("" if is_inside else " | body"),
        f"reasoned[lazy]: {opening}ANY {json.dumps(tags.closing)}",
        r"ANY: /(.|\n)*/",
        r"GAP: /[ \n]+/",
    ]
    header, *lines = source.split("\n")
    own = [re.sub("^start:", "body:", line) for line in lines]
    return "\n".join([header, *rules, *own])


def calls_rules(style: ToolStyle, max_calls: int) -> Sequence[str]:
    """Return the rules of one call or several: in tags line by line, or bare, then as a list."""
    more = f"{{0,{max_calls - 1}}}"
    if not style.opening:
        listed = f' | "[" call (", " call){more} "]"' if max_calls > 1 else ""
        return (f"calls: call{listed}",)
    opening, closing = json.dumps(style.opening), json.dumps(f"\n{style.closing}")
    tagged = f'"\\n" call {closing}'
    again = f' ("\\n" {opening} {tagged}){more}' if max_calls > 1 else ""
    return (f"calls: lead {tagged}{again}",)


def answer_rules(
    style: ToolStyle, schema: str | None, choice: ToolChoice, reasoning: Reasoning | None
) -> Sequence[str]:
    """Return the rules of what may come instead of a call, and before the first one."""
    lead = f"lead: {json.dumps(style.opening)}"
    if choice != "auto":
        return ("start: calls", lead)
    if schema is not None:
        return ("start: answer | calls", f"answer: %json {schema}", lead)
    if not style.opening:
        first = r"[^{\[]" if reasoning is None else r"[^{\[\s]"  # see GAP
        return ("start: answer | calls", "answer: TEXT", rf"TEXT: /({first}(.|\n)*)?/")
    # Lazy: the first opening tag ends the free text, and from there on the schema rules.
    return (
        "start: answer | calls",
        "answer: TEXT",
        f"lead[lazy]: TEXT {json.dumps(style.opening)}",
        rf"TEXT: /(.|\n)*/{_no_reasoning(reasoning)}",
    )


def call_head(name: str, style: ToolStyle) -> str:
    """Return what a call begins with, up to its arguments."""
    return json.dumps(f'{{"name": {json.dumps(name)}, "{style.arguments_key}": ')


def _no_reasoning(reasoning: Reasoning | None) -> str:
    """Keep free text from being read as an answer where it is reasoning: calls in it are none."""
    if reasoning is None or reasoning.beginning is not Beginning.OPEN:
        return ""
    tag = re.escape(reasoning.tags.start).replace("\n", "n")  # a backslash stands before it
    return rf" & ~/\s*{tag}(.|\n)*/"
