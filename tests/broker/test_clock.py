"""Redis's time between two of its answers, by a clock that goes at a rate of its own."""

from __future__ import annotations

from orchestrator.broker.port import RedisClock


class Machine:
    """A clock that is a little too fast."""

    def __init__(self, rate: float) -> None:
        self.true_s = 0.0
        self._rate = rate

    def __call__(self) -> float:
        return 1_000.0 + self.true_s * self._rate


def test_clock_that_drifts_is_put_right_by_every_answer() -> None:
    machine = Machine(1.002)
    clock = RedisClock(machine)
    assert clock.now_ms() == 0, "nobody has told it anything"
    for second in range(10, 36_000, 10):
        machine.true_s = float(second)
        clock.note(second * 1000)
        machine.true_s += 1.0
        assert abs(clock.now_ms() - (second + 1) * 1000) <= 5


def test_clock_goes_back_with_redis() -> None:
    machine = Machine(1.0)
    clock = RedisClock(machine)
    clock.note(50_000)
    machine.true_s = 1.0
    assert clock.note(20_000) == clock.now_ms() == 20_000
