"""``pytest --rule-coverage``: which rules of the ready types the tests meet.

A rule is met on a primitive if it answers there, and not if it only declines. The registered
rules are read from the global table, so a new rule counts at once. With xdist each worker
notes the rules that it meets, and the report covers all workers.
"""

import inspect
from collections import defaultdict

import pytest


PACKAGE = "jaxrewrite.values"


def registered():
    """Of each rule of the ready types, by its label, the names of its primitives."""
    import jaxrewrite.values  # noqa: F401 - its rules register as it is loaded
    from jaxrewrite._core.rules import global_rules

    found = defaultdict(set)
    for primitive, dispatcher in global_rules._dispatchers.items():
        for cell in dispatcher.funcs.values():
            for entry in cell.values():
                if is_ready(entry.rule):
                    found[label(entry.rule)].add(primitive.name)
    return found


def is_ready(rule):
    return rule.fn.__module__.startswith(PACKAGE)


def label(rule):
    """Where a rule is and for which operands: the same text in every process."""
    code = inspect.unwrap(rule.fn).__code__
    types, _ = next(iter(rule.signature.combinations()))
    names = ", ".join(getattr(t, "__name__", str(t)) for t in types)
    turned = ", mirrored" if rule.mirrored else ""
    where = rule.fn.__module__.removeprefix("jaxrewrite.")
    return f"{where}:{code.co_firstlineno} ({names}){turned}"


class RuleCoverage:
    """The plugin, of a process that runs tests and of the one that reports."""

    def __init__(self, config):
        from jaxrewrite._core.rules import Rule

        self.config = config
        self.met = set()
        labels = {}
        call = Rule.__call__

        def noting(rule, primitive, *args):
            answer = call(rule, primitive, *args)
            if answer is not NotImplemented and is_ready(rule):
                if rule not in labels:
                    labels[rule] = label(rule)
                self.met.add((labels[rule], primitive.name))
            return answer

        Rule.__call__ = noting

    def pytest_sessionfinish(self):
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["rules met"] = sorted(self.met)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.met.update(map(tuple, getattr(node, "workeroutput", {}).get("rules met", ())))

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        rules = registered()
        pairs = {(rule, name) for rule, names in rules.items() for name in names}
        met = {rule for rule, _ in self.met & pairs}
        terminalreporter.section("rules of the ready types")
        for rule in sorted(rules.keys() - met):
            write(f"never met: {rule} on {', '.join(sorted(rules[rule]))}")
        for what, some, all_ in (
            ("rules", met, rules),
            ("rules by primitive", self.met & pairs, pairs),
        ):
            write(f"{len(some)} of {len(all_)} {what} met: {len(some) / len(all_):.1%}")
