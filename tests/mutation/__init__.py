"""A test of the tests: single defects are planted in the library, and tests have to find them.

First record which lines each test runs, on Python 3.12 or later, from the checkout, so that
the examples of docstrings and docs are among the tests; and then plant, from the folder of the
tests, with the library importable::

    PYTHONPATH=tests python -m pytest -p mutation.recorder --record tests/lines.json
    cd tests && python -m mutation lines.json --count 300 --seed 1

``plant`` makes the defects, such as a wrong axis, a dropped term, a skipped decline, exchanged
operands. For each, a process runs those tests of the default run that run the changed line, the
quickest first, until one fails. The report lists the defects that survive. ``survivors.txt``
has those that are known, with the reason.
"""
