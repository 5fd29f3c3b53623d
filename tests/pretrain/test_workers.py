import os
import threading

import pytest

from torchelmo.errors import InputError
from torchelmo.pretrain.workers import Workers


def test_one_worker_is_this_process():
    with Workers(1) as pool:
        assert list(pool.map(lambda _: threading.get_ident(), range(2))) == (
            [threading.get_ident()] * 2
        )


def test_results_are_in_order_and_tasks_taken_as_needed():
    taken = []

    def tasks():
        for number in range(-40, 0):
            taken.append(number)
            yield number

    with Workers(2) as pool:
        results = pool.map(abs, tasks())
        assert next(results) == 40
        assert len(taken) <= 5
        assert list(results) == list(range(39, 0, -1))


def test_an_error_comes_as_it_is():
    with Workers(2) as pool, pytest.raises(ZeroDivisionError):
        list(pool.map(divmod_by, [1, 0]))


def divmod_by(number):
    return 1 // number


def test_a_worker_that_is_killed():
    with Workers(2) as pool, pytest.raises(InputError, match="one of the 2 worker processes"):
        list(pool.map(os._exit, [1]))
