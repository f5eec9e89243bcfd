"""``python -m mutation lines.json``: see the package."""

from __future__ import annotations

import argparse
import collections
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import random
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Set
from types import CodeType, FunctionType
from typing import Any, NamedTuple


# JAX reads this as it is imported; ``conftest`` sets the rest in each process.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

from .plant import Defect, defects, planted  # noqa: E402


TESTS = pathlib.Path(__file__).parents[1]
PACKAGE = TESTS.parent / "jaxrewrite"

# The default run cannot import it: Lineax has an environment of its own, `tox -e lineax`.
_NOT_IMPORTED = "_interop/lineax"
# What only solves of Lineax run is tested there, too.
_NOT_RUN = f"{_NOT_IMPORTED}.py", "_interop/annotated.py"

# The tests of a defect take at most so many seconds, by the times of the record.
MOST_SECONDS = 40.0
_FIRST_PORTION = 0.2
# A defect may make a test run forever, or wait forever: seconds of the processor, and of the clock.
MOST_OF_PROCESSOR = 240
TIMEOUT = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("record", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files, by a part of a path")
    parser.add_argument(
        "--seconds", type=float, default=MOST_SECONDS, help="the tests of a defect take"
    )
    parser.add_argument("--cache", help="a folder for what is compiled")
    parser.add_argument("--out", type=pathlib.Path, help="a file for the report")
    options = parser.parse_args()
    if options.cache:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = options.cache
    runs = Runs()
    record = Record(json.loads(options.record.read_text()))
    chosen = sampled(options.count, options.seed, options.only)
    known = known_survivors()
    found: list[tuple[Defect, Verdict]] = []
    for number, defect in enumerate(chosen):
        own = record.tests_of(defect.place)
        verdict = runs.verdict(defect, _relevant(own, options.seconds))
        if verdict.word != "killed" and key_of(defect) in known:
            verdict = Verdict("known")
        found.append((defect, verdict))
        print(f"{number + 1}/{len(chosen)} {verdict.word}: {defect}", flush=True)
    unsound = runs.failing_without_a_defect({v.by for _, v in found if v.by})
    verdicts: dict[str, list[Defect]] = collections.defaultdict(list)
    for defect, verdict in found:
        fails_too = f"broken, {verdict.by} fails without a defect too"
        verdicts[fails_too if verdict.by in unsound else verdict.word].append(defect)
    report = _report(verdicts, len(chosen))
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 0


def sampled(count: int, seed: int, only: str = "") -> list[Defect]:
    """Defects of all rooms, which are folders: as many of each, as far as it has so many."""
    by_room: dict[str, list[Defect]] = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(PACKAGE))
        if only in file and file not in _NOT_RUN:
            by_room[str(path.parent)] += defects(file, path.read_text())
    choose = random.Random(seed)
    for room in by_room.values():
        choose.shuffle(room)
    found: list[Defect] = []
    while len(found) < count and any(by_room.values()):
        found += [room.pop() for room in by_room.values() if room]
    return found[:count]


def key_of(defect: Defect) -> str:
    """A defect by its file and text, which stay when lines move."""
    return f"{defect.file} {defect.kind}: {defect.text}"


def known_survivors() -> set[str]:
    """The defects that are listed as survivors; a reason follows each, indented."""
    lines = (pathlib.Path(__file__).parent / "survivors.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith((" ", "#"))}


class Met(NamedTuple):
    """A test that runs a line."""

    took: float
    test: str
    # How much of what few tests run in the same file it runs.
    relevance: float


class Record:
    """The tests that run each line: what `mutation.recorder` wrote, a part for each process."""

    def __init__(self, parts: Any) -> None:
        self._parts = []
        for part in parts:
            numbers = {place: number for number, place in enumerate(part["places"])}
            tests = [
                (took, test, _bits(lines)) for test, (took, lines) in part["tests"].items()
            ]
            self._parts.append((numbers, tests))

    def tests_of(self, place: str) -> list[Met]:
        """The tests that run a line."""
        file = place.partition(":")[0]
        found = []
        counts: collections.Counter[str] = collections.Counter()
        for numbers, tests in self._parts:
            of_file = [(p, i) for p, i in numbers.items() if p.partition(":")[0] == file]
            for took, test, bits in tests:
                run = [p for p, i in of_file if _is_set(bits, i)]
                counts.update(run)
                if place in run:
                    found.append((took, test, run))
        return [Met(*own, sum(1 / counts[p] for p in run)) for *own, run in found]


def _bits(lines: str) -> bytes:
    return int(lines, 16).to_bytes(len(lines) // 2 + 1, "little")


def _is_set(bits: bytes, number: int) -> bool:
    byte, bit = divmod(number, 8)
    return byte < len(bits) and bool(bits[byte] >> bit & 1)


def _relevant(tests: list[Met], most: float) -> list[list[str]]:
    """Of the tests of a line as many as there is time for, in two halves.

    In the first one the quickest of each file come first, then the second of each, and so on: what
    one file asks is much alike. In the second one are those that, in a second, run most of what few
    tests run in the file of the line: where all programs pass a line, they are the tests of what it
    is for.
    """
    met: collections.Counter[str] = collections.Counter()
    turns = []
    for took, test, _ in sorted(tests):
        file = test.partition("::")[0]
        turns.append((met[file], took, test))
        met[file] += 1
    in_turn = [(took, test) for _, took, test in sorted(turns)]
    quick = _as_many(in_turn, most / 2) or in_turn[:1]
    chosen = {test for _, test in quick}
    others = [x for x in tests if x.test not in chosen]
    others.sort(key=lambda x: -x.relevance / max(x.took, _FIRST_PORTION))
    return _in_portions([*quick, *_as_many(((x.took, x.test) for x in others), most / 2)])


def _as_many(tests: Iterable[tuple[float, str]], most: float) -> list[tuple[float, str]]:
    """Those for which there is time left."""
    chosen: list[tuple[float, str]] = []
    seconds = 0.0
    for took, test in tests:
        if seconds + took <= most:
            chosen.append((took, test))
            seconds += took
    return chosen


def _in_portions(tests: Iterable[tuple[float, str]]) -> list[list[str]]:
    """Each portion takes longer than the one before.

    Most defects are found by a few tests, and then the files of the others are not imported.
    """
    portions: list[list[str]] = [[]]
    seconds = 0.0
    for took, test in tests:
        if seconds > _FIRST_PORTION * 4 ** (len(portions) - 1):
            portions.append([])
        portions[-1].append(test)
        seconds += took
    return [portion for portion in portions if portion]


# --- planting -------------------------------------------------------------------------------


def _functions_of_the_library() -> dict[tuple[str, int, str], list[FunctionType]]:
    """All functions of the library that exist once it is imported, by where they begin."""
    import jaxrewrite

    if pathlib.Path(jaxrewrite.__file__).parent != PACKAGE:
        raise SystemExit(
            f"jaxrewrite is imported from {jaxrewrite.__file__}: set PYTHONPATH"
        )
    for module in pkgutil.walk_packages(jaxrewrite.__path__, "jaxrewrite."):
        if module.name != f"jaxrewrite.{_NOT_IMPORTED.replace('/', '.')}":
            importlib.import_module(module.name)
    found: dict[tuple[str, int, str], list[FunctionType]] = collections.defaultdict(list)
    for x in gc.get_objects():
        if type(x) is FunctionType and x.__code__.co_filename.startswith(str(PACKAGE)):
            found[_place(x.__code__)].append(x)
    return found


def _place(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def plant(defect: Defect, functions: dict[Any, list[FunctionType]]) -> None:
    """Give each function that has the defect in it the code with the defect.

    All functions of the module get the code that is compiled anew.
    """
    path = PACKAGE / defect.file
    tree = planted(path.read_text(), defect)
    for code in _codes(compile(tree, str(path), "exec", dont_inherit=True)):
        for function in functions.get(_place(code), ()):
            if len(code.co_freevars) == len(function.__code__.co_freevars):
                function.__code__ = code


_IMPORTED_BY_ALL_TESTS = "pytest", "hypothesis", "scipy.fft"

# What pytest returns if all tests passed, if one failed, and if a file of tests could not be
# imported, as some make values there. All else says nothing of the defect.
_VERDICTS = {0: "survived", 1: "killed", 2: "killed"}


class Verdict(NamedTuple):
    """What tests say of a defect, and the test that failed."""

    word: str
    by: str = ""


class _Failures:
    """A plugin of pytest, which tells a file the names of the tests that fail."""

    def __init__(self, file: int) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(self.file, f"{report.nodeid}\n".encode())


class Runs:
    """Runs of tests in processes of their own, from one where the library is imported."""

    def __init__(self) -> None:
        self.functions = _functions_of_the_library()
        for module in _IMPORTED_BY_ALL_TESTS:
            importlib.import_module(module)

    def verdict(self, defect: Defect, portions: list[list[str]]) -> Verdict:
        """What tests say of a defect: those of the first portion where one fails."""
        if not portions:
            return Verdict("not run by any test")
        word, failed = self._run(defect, portions)
        return Verdict(word, *failed[:1])

    def failing_without_a_defect(self, tests: Set[str]) -> Set[str]:
        """The tests that say nothing of a defect."""
        return {*self._run(None, [sorted(tests)])[1]} if tests else set()

    def _run(
        self, defect: Defect | None, portions: list[list[str]]
    ) -> tuple[str, list[str]]:
        """A verdict, and the tests that failed."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            _run_tests(defect, portions, self.functions, theirs)
        os.close(theirs)
        deadline = time.monotonic() + TIMEOUT
        status = None
        while status is None and time.monotonic() < deadline:
            pid, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
            time.sleep(0.05)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        with open(ours) as found:
            failed = found.read().splitlines()
        is_endless = status is None or status == -signal.SIGXCPU
        return "killed" if is_endless else _VERDICTS.get(status, "broken"), failed


def _run_tests(
    defect: Defect | None, portions: list[list[str]], functions: Any, failures: int
) -> None:
    """Plant a defect, run tests until one fails, and leave the process with the status.

    A file of tests is imported once for all portions, and what is compiled is, too.
    """
    status = 3
    # What is imported already has its assertions as they are written.
    options = ["-q", "-p", "no:cacheprovider", "--assert=plain"]
    try:
        if defect is not None:
            options.append("-x")
            plant(defect, functions)
            most = MOST_OF_PROCESSOR, resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_CPU, most)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(TESTS.parent)
        import pytest

        plugins = [_Failures(failures)]
        runs = (int(pytest.main([*options, *tests], plugins=plugins)) for tests in portions)
        status = next(filter(None, runs), 0)
    finally:
        os._exit(status)


def _report(verdicts: dict[str, list[Defect]], count: int) -> str:
    numbers = ", ".join(f"{len(own)} {verdict}" for verdict, own in verdicts.items())
    kinds = collections.Counter(x.kind for own in verdicts.values() for x in own)
    alive = [
        defect
        for verdict, own in verdicts.items()
        for defect in own
        if verdict not in ("killed", "known")
    ]
    share = 1 - len(alive) / max(count, 1)
    alive_kinds = collections.Counter(defect.kind for defect in alive)
    by_kind = [f"{n - alive_kinds[kind]} of {n} {kind}" for kind, n in kinds.most_common()]
    return "\n".join(
        [
            f"{count} defects: {numbers}; {share:.1%} are found or known.",
            f"By their kinds: {', '.join(by_kind)}.",
            *sorted(map(str, alive)),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
