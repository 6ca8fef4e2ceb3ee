import pytest

from srmlab.training import learning_rate


def test_warm_up_is_linear_and_ends_at_the_full_rate():
    rates = [learning_rate(t, lr=2.0, warmup=4, steps=10) for t in range(1, 11)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert learning_rate(1, lr=1e-3, warmup=0, steps=10) == 1e-3


def test_a_cosine_falls_from_the_full_rate_to_its_end():
    def rate(step):
        return learning_rate(step, lr=1.0, warmup=10, steps=110, schedule="cosine", lr_end=0.1)

    assert rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)
    assert rate(110) == pytest.approx(0.1)
    assert all(rate(t) > rate(t + 1) for t in range(10, 110))
