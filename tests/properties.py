"""What tests of random programs share."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
from reference import OWN


def properties(examples):
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def _made(kinds, seed):
    rng = np.random.default_rng(seed)
    return [OWN[kind].value(rng, shape=(3, 3)) for kind in kinds]


# Some values of a shape (3, 3), each of one of the types that are written as by a user.
operands = st.builds(
    _made,
    st.lists(st.sampled_from(sorted(OWN)), min_size=1, max_size=3),
    st.integers(0, 10_000),
)
