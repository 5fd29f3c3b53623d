"""Parts of work in threads: order, errors, and nothing left behind in torch's settings."""

import threading

import pytest
import torch

from torchelmo.ops import threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_new_thread(what):
    found = []
    thread = threading.Thread(target=lambda: found.append(what()))
    thread.start()
    thread.join()
    return found[0]


def test_results_in_order_from_single_threads():
    parts = [lambda n=n: (n, torch.get_num_threads(), torch.is_grad_enabled()) for n in range(9)]
    assert threads.run(parts) == [(n, 1, False) for n in range(9)]
    assert torch.get_num_threads() == 2 and in_new_thread(torch.get_num_threads) == 2
    with torch.inference_mode():
        assert threads.run([torch.is_inference_mode_enabled] * 2) == [True, True]


def test_one_thread_runs_parts_itself():
    torch.set_num_threads(1)
    assert threads.run([threading.get_ident] * 3) == [threading.get_ident()] * 3


def test_parts_inside_parts():
    assert threads.run([lambda: threads.run([lambda: 1, lambda: 2])] * 5) == [[1, 2]] * 5


def test_an_error_arrives():
    def fail():
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        threads.run([fail, lambda: 1])
    with pytest.raises(MemoryError, match="full"):
        list(threads.ahead([lambda: 1, fail, lambda: 2], 2))


def test_serial_leaves_the_count_to_others():
    with threads.serial():
        assert torch.get_num_threads() == 1 and threads.count() == 2
        here = threading.get_ident()
        assert here not in threads.run([threading.get_ident] * 2)
        assert list(threads.ahead([threads.count] * 3, 2)) == [2, 2, 2]
        assert list(threads.ahead([torch.get_num_threads] * 3, 2)) == [1, 1, 1]
        with threads.serial():
            assert threads.count() == 2
    assert torch.get_num_threads() == 2 and threads.count() == 2
    assert list(threads.ahead([threads.count] * 3, 2)) == [2, 2, 2]
    assert in_new_thread(torch.get_num_threads) == 2


@pytest.mark.parametrize("most", [1, 2, 5])
def test_ahead_keeps_order(most):
    begun = []

    def part(n):
        begun.append(n)
        return n

    found = threads.ahead((lambda n=n: part(n) for n in range(10)), most)
    assert next(found) == 0 and len(begun) <= most
    assert list(found) == list(range(1, 10))
    stopped = threads.ahead((lambda n=n: part(n) for n in range(10)), most)
    next(stopped)
    stopped.close()
    assert len(begun) <= 10 + most
