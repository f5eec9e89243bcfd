"""Other people's test suites as a source of programs.

JAX's own tests run thousands of functions on arguments that were chosen to be awkward. What
they jit, differentiate or map is here also run with values in the place of the arrays, and the
answers, dtypes and weak types are compared with those on the arrays.

Running other people's tests
----------------------------
The tests are not part of JAX's wheels, and none of them is copied here. They are read from a
checkout of JAX, of the version that is installed, which the user has::

    git clone --depth 1 --branch jax-v0.10.2 https://github.com/jax-ml/jax /some/where
    tox -e jaxtests -- /some/where lax_numpy_test linalg_test --sample 300

or, without tox, ``PYTHONPATH=tests python -m upstream /some/where lax_numpy_test``. The names
of modules may be left out (then those of ``MODULES`` are run); other arguments are pytest's.

A test passes if every function that it checked has the same results on values as on arrays. It
is skipped if it checked no function, or if it is known not to concern values (``skips``). The
verdict of the test itself does not matter: it may count compilations, or belong to another
version.

The values and derivatives for a function are drawn at random, with the name of the test as the
seed, so a run can be repeated. ``--draws`` is the number of checks of a function, ``--sample``
the number of tests, ``--forms`` selects values, and ``--problems`` is a file for differences.
``--abstract`` compares only shapes and dtypes, in a tenth of the time. ``--lenient`` allows
JAX's promotion of ranks and dtypes, as users have it, while the harness forbids it.

* ``forms``: the values that stand for an arbitrary array exactly.
* ``checks``: one function, on arrays and on values, in several ways.
* ``plugin``: the pytest plugin that has JAX's test harness call the checks.
* ``skips``: what is known to differ, with reasons.
"""
