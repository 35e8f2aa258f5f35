"""Which samples count, and when a candidate is slower than another one."""

import pytest

from polysci.measure.samples import LEAST_SAMPLES, Sample, Samples, is_beaten, is_worse, samples_of


def disturbed(seconds: float) -> Sample:
    return Sample(seconds, waited=0.5)


@pytest.mark.parametrize(
    ("sample", "is_disturbed"),
    [
        (Sample(1.0), False),
        (Sample(1.0, waited=0.01, speed=0.95), False),
        (Sample(1.0, waited=0.03), True),
        (Sample(1.0, stolen=0.01), True),
        (Sample(1.0, speed=0.8), True),
    ],
)
def test_what_disturbs_a_sample(sample: Sample, is_disturbed: bool) -> None:
    assert sample.disturbed == is_disturbed


def test_disturbed_samples_are_left_out_where_enough_others_are_there() -> None:
    its = Samples([Sample(1.0), disturbed(9.0), Sample(1.2), Sample(1.1), disturbed(8.0)])
    assert its.seconds == (1.0, 1.2, 1.1) and its.median == 1.1
    assert its.dropped == 2 / 5
    never_quiet = Samples([Sample(1.0), disturbed(9.0), disturbed(8.0), disturbed(7.0)])
    assert never_quiet.seconds == (1.0, 7.0, 8.0)


def test_disturbed_samples_are_repeated_up_to_a_limit() -> None:
    its = Samples([disturbed(1.0)] * 11)
    assert not its.enough(4)
    its.add(disturbed(1.0))
    assert its.enough(4)
    quiet = Samples([Sample(1.0)] * 3 + [disturbed(1.0)])
    assert not quiet.enough(4)
    quiet.add(Sample(1.0))
    assert quiet.enough(4)


def test_slower_means_beyond_the_spread_of_both() -> None:
    fast, near, slow = (
        samples_of([1.0, 1.1, 1.2, 1.3]),
        samples_of([1.2] * 4),
        samples_of([2.0] * 4),
    )
    assert is_worse(slow, fast) and not is_worse(near, fast) and not is_worse(fast, slow)
    assert is_beaten(slow, [fast, near, slow]) and not is_beaten(near, [fast, near, slow])
    unknown = samples_of([3.0] * (LEAST_SAMPLES - 1))
    assert not is_beaten(unknown, [fast, unknown]) and not is_beaten(fast, [fast, unknown])
