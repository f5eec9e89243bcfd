"""The three forms of a report that is written by hand, in which no two numbers are the same."""

import dataclasses
import html.parser

import pytest

from jaxrewrite import Report
from jaxrewrite._insight.plot import by_line
from jaxrewrite._insight.report import Body, Declined, MadeDense, RuleInfo, Step


RULE = RuleInfo("lora", "/there/lora.py", 12)
PLAIN = Step(
    "neg",
    "",
    0,
    "<module>",
    ("f32[2]",),
    ("f32[2]",),
    "identity",
    None,
    (),
    ("neg",),
    (2.0, 2.0),
    (16.0, 16.0),
    (),
    (),
    1,
    (),
    (),
)
MADE = MadeDense(
    "Lora",
    "f32[3,4]",
    48.0,
    "no rule <took> it",
    '@jaxrewrite.register("sort")\ndef _(x: Lora, **params): ...',
)


def step(primitive, line, decision, **more):
    return dataclasses.replace(
        PLAIN,
        primitive=primitive,
        file="/there/program.py",
        line=line,
        function="model",
        decision=decision,
        **more,
    )


DOT = step(
    "dot_general",
    3,
    "rule",
    operands=("f32[2,3]", "Lora:f32[3,4]"),
    results=("f32[2,4]",),
    rule=RULE,
    declined=(Declined(RuleInfo("guarded", "", 0), "x has rank 2"),),
    flops=(4800.0, 1200.0),
    inner=(dataclasses.replace(PLAIN, flops=(1.0, 3.0)),),
    times=6,
)
SORT = step(
    "sort",
    5,
    "dense",
    dense=(MADE, dataclasses.replace(MADE, type="Diagonal", bytes=36.0)),
    joined=("carry 0: Lora:f32[3,4] became f32[3,4]",),
    flops=(30.0, 7e6),
    times=6,
)
LOOP = step(
    "scan",
    4,
    "handler",
    bodies=(
        Body("jaxpr", 6, (DOT, SORT)),
        Body("unknown", None, (step("exp", 6, "dense", times=None, flops=(5.0, 4.0)),)),
        Body("empty", 3, ()),
    ),
    changed_by=("Fuse", "Zeros"),
    flops=(9e3, 8e3),
)
MATCH = step(
    "pattern", 7, "pattern", rule=RULE, covered=("exp", "mul", "add"), flops=(0.0, 11.0)
)
DEFAULT = step(
    "cos",
    8,
    "default",
    dense=(dataclasses.replace(MADE, bytes=200.0),),
    flops=(3.0, 3.0),
    times=None,
)
REPORT = Report(
    "model",
    ("f32[2,3]", "Lora:f32[3,4]"),
    "forbid",
    (LOOP, MATCH, DEFAULT, PLAIN),
    (2e6, 5e5),
    (0.0, 999.6),
    9,
    ("Fuse",),
)


@pytest.mark.parametrize("name", ["_", "made.<locals>._"])
def test_a_rule_without_a_name_is_shown_by_its_place(name):
    rule = RuleInfo(name, "/there/lora.py", 12)
    report = dataclasses.replace(REPORT, tree=(dataclasses.replace(MATCH, rule=rule),))
    assert f"{MATCH.decision} lora.py:12" in str(report)
    assert " lora.py:12" in report._repr_html_()


TEXT = """\
model on (f32[2,3], Lora:f32[3,4])

program.py:4 scan(f32[2]) -> f32[2]
  rewritten with its bodies; FLOPs 9 k -> 8 k
  changed by Fuse, Zeros
  jaxpr (x 6):
    program.py:3 dot_general(f32[2,3], Lora:f32[3,4]) -> f32[2,4]
      rule lora (lora.py:12); FLOPs 4.8 k -> 1.2 k
      declined: guarded, x has rank 2
      ? neg(f32[2]) -> f32[2]
        each leaf is moved; FLOPs 1 -> 3
    program.py:5 sort(f32[2]) -> f32[2]
      DENSE; FLOPs 30 -> 7 M
      carry 0: Lora:f32[3,4] became f32[3,4]
  unknown (an unknown number of times):
    program.py:6 exp(f32[2]) -> f32[2]
      unchanged; FLOPs 5 -> 4
program.py:7 pattern(f32[2]) -> f32[2]
  pattern lora (lora.py:12) of 3 equations; FLOPs 0 -> 11
program.py:8 cos(f32[2]) -> f32[2]
  default; FLOPs 3 -> 3
? neg(f32[2]) -> f32[2]
  each leaf is moved; FLOPs 2 -> 2

Became dense, the most bytes first:
  Lora:f32[3,4] (48B x 6) in sort at /there/program.py:5
    no rule <took> it.
      @jaxrewrite.register("sort")
      def _(x: Lora, **params): ...
  Diagonal:f32[3,4] (36B x 6) in sort at /there/program.py:5
    no rule <took> it.
      @jaxrewrite.register("sort")
      def _(x: Lora, **params): ...
  Lora:f32[3,4] (200B x ?) in cos at /there/program.py:8
    no rule <took> it.
      @jaxrewrite.register("sort")
      def _(x: Lora, **params): ...

The program was changed by Fuse.
1 match of patterns; 7 equations met a value; 3 values became dense, which the policy forbids.
FLOPs: 2 M dense, 500 k implicit (0.25 of dense).
Bytes, each equation by itself: 0 dense, 1 k implicit."""

OUTLINE = """\
model on (f32[2,3], Lora:f32[3,4])
  [place /there/program.py:4] model:4 scan(f32[2]) → f32[2] [answer] rewritten with its bodies FLOPs 9 k → 8 k
  changed by Fuse, Zeros
    jaxpr × 6
      [place /there/program.py:3] model:3 dot_general(f32[2,3], Lora:f32[3,4]) → f32[2,4] [answer] rule lora (lora.py:12) FLOPs 4.8 k → 1.2 k
      declined: guarded, x has rank 2
      [place] <module>:0 neg(f32[2]) → f32[2] [answer] each leaf is moved FLOPs 1 → 3
      [place /there/program.py:5] model:5 sort(f32[2]) → f32[2] [dense] DENSE FLOPs 30 → 7 M
      carry 0: Lora:f32[3,4] became f32[3,4]
    unknown × ?
    [place /there/program.py:6] model:6 exp(f32[2]) → f32[2] [answer] unchanged FLOPs 5 → 4
    empty × 3
[place /there/program.py:7] model:7 pattern(f32[2]) → f32[2] [answer] pattern lora (lora.py:12) of 3 equations FLOPs 0 → 11
[place /there/program.py:8] model:8 cos(f32[2]) → f32[2] [dense] default FLOPs 3 → 3
[place] <module>:0 neg(f32[2]) → f32[2] [answer] each leaf is moved FLOPs 2 → 2
  Became dense, the most bytes first
  Lora:f32[3,4] (48B) in sort at /there/program.py:5: no rule <took> it.
  @jaxrewrite.register("sort") def _(x: Lora, **params): ...
  Diagonal:f32[3,4] (36B) in sort at /there/program.py:5: no rule <took> it.
  @jaxrewrite.register("sort") def _(x: Lora, **params): ...
  Lora:f32[3,4] (200B) in cos at /there/program.py:8: no rule <took> it.
  @jaxrewrite.register("sort") def _(x: Lora, **params): ...
The program was changed by Fuse.
1 match of patterns; 7 equations met a value; 3 values became dense, which the policy forbids.
FLOPs: 2 M dense, 500 k implicit (0.25 of dense).
Bytes, each equation by itself: 0 dense, 1 k implicit."""


class Outline(html.parser.HTMLParser):
    """The texts of a page, indented as it folds, with the classes of spans."""

    def __init__(self, page):
        super().__init__()
        self.lines, self.line, self.depth = [], "", 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "span":
            self.line += f"[{' '.join(filter(None, attrs.values()))}] "
        elif tag != "b":
            self._end_line()
            self.depth += tag == "details"

    def handle_endtag(self, tag):
        if tag not in ("span", "b"):
            self._end_line()
            self.depth -= tag == "details"

    def handle_data(self, data):
        self.line += data

    def _end_line(self):
        if self.line.strip():
            self.lines.append("  " * self.depth + " ".join(self.line.split()))
        self.line = ""


def test_the_text():
    assert str(REPORT) == TEXT


def test_the_page():
    style, *lines = Outline(REPORT._repr_html_()).lines
    assert style.startswith(".jaxrewrite")
    assert lines == OUTLINE.split("\n")


def test_flops_by_line():
    assert by_line(REPORT) == {
        "program.py:3": (28800, 7200),
        "program.py:5": (180, 42e6),
        "program.py:6": (5, 4),
        "program.py:7": (0, 11),
        "program.py:8": (3, 3),
        "?": (2, 2),
    }


def test_the_text_of_little():
    """One of each, and nothing that became dense."""
    one = dataclasses.replace(REPORT, policy="warn", tree=(PLAIN,), passes=(), flops=(0, 1))
    assert str(one).split("\n")[-3:] == [
        "1 equation met a value; 0 values became dense.",
        "FLOPs: 0 dense, 1 implicit.",
        "Bytes, each equation by itself: 0 dense, 1 k implicit.",
    ]
    assert "Became dense" not in str(one) + one._repr_html_()
    dense = dataclasses.replace(one, tree=(SORT, SORT))
    assert "2 equations met a value; 4 values became dense." in str(dense)
    only = dataclasses.replace(one, tree=(MATCH, MATCH))
    assert "\n2 matches of patterns; 0 values became dense." in str(only)
    single = dataclasses.replace(SORT, dense=(MADE,))
    assert "1 equation met a value; 1 value became dense." in str(
        dataclasses.replace(one, tree=(single,))
    )
