"""A search for wrong answers of the ready value types, by random programs.

``python -m sweep --seeds 0:1000``, in this folder's parent with the library importable, runs
one program for each seed, prints every failure as a program to paste, shrunk, and counts the
verdicts; ``--help`` says what else. A seed is a program: the same one on every machine.

``values`` makes the values and ``programs`` what is done to them, both as Python source;
``oracle`` runs a program on values and on dense arrays and says what is wrong; ``shrink``
makes a failure small.
"""
