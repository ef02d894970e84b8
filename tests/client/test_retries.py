import grpc
import pytest
from softmaxd_client import RetryPolicy, UnavailableError
from softmaxd_client.retries import Attempts

ERROR = UnavailableError(grpc.StatusCode.UNAVAILABLE, "draining")


def test_retry_policy_backoffs_grow_up_to_the_longest():
    policy = RetryPolicy(max_attempts=5, initial_backoff_seconds=0.5, max_backoff_seconds=3, backoff_multiplier=2)
    assert list(policy.backoffs()) == [0.5, 1, 2, 3]


def test_attempts_backoffs_are_the_policys_within_a_fifth():
    waits = set()
    for _ in range(50):
        attempts = Attempts(RetryPolicy(max_attempts=3, initial_backoff_seconds=1, max_backoff_seconds=2), None)
        first, second = attempts.backoff_seconds(ERROR), attempts.backoff_seconds(ERROR)
        assert 0.8 <= first <= 1.2
        assert 1.6 <= second <= 2.4
        waits.add(first)
        with pytest.raises(UnavailableError) as caught:
            attempts.backoff_seconds(ERROR)
        assert caught.value is ERROR
    assert len(waits) > 1


def test_attempts_without_a_policy_are_one():
    with pytest.raises(UnavailableError, match="draining"):
        Attempts(None, None).backoff_seconds(ERROR)


def test_attempts_share_the_time_of_the_call():
    attempts = Attempts(None, 100)
    first, second = attempts.seconds_left(), attempts.seconds_left()
    assert 99 < second <= first <= 100
    assert Attempts(None, None).seconds_left() is None


def test_attempts_no_time_for_another_raises_the_error_at_once():
    attempts = Attempts(RetryPolicy(initial_backoff_seconds=50, max_backoff_seconds=50), 30)
    with pytest.raises(UnavailableError, match="draining"):
        attempts.backoff_seconds(ERROR)
