"""Differences between deployments, drawn for each seed: keys, replicas, versions, and small bounds.

The product's bounds are large, and a simulated session is small. Some seeds have them small, so that what
happens at a bound happens: tasks and cancels that end in pieces, steps that are cut, queues that are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from orchestrator.broker import job_queue
from orchestrator.core.chain import ChainKey
from orchestrator.core.decide import agent, mail_delivery, task
from orchestrator.rollouts import redaction
from orchestrator.runtime import step
from orchestrator.tools.exec import worker_processes

_SMALL = (
    (task, "MOST_ITEMS", 2),
    (agent, "MOST_TOLD", 1),
    (mail_delivery, "MOST_LETTERS", 1),
    (mail_delivery, "MOST_BYTES", 900),
    (job_queue, "MOST_WAITING", 2),
    (step, "MAX_STEP_ENTRIES", 24),
    (worker_processes, "UNSEEN_S", 5.0),
)
"""Constants of the product, and what they are in seeds with small bounds."""
_OFTEN_SMALL = ((redaction, "AT_ONCE", 1),)
"""The same, in most seeds: a redaction of a few entries is one of several commits."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """The deployment of a seed."""

    chain_key: ChainKey | None
    confirmed: float | None
    """How likely replicas confirm a decision in time; None: nobody asks them."""
    mixed: bool
    """Some workers are of the version before."""
    small: bool
    queue: int
    """How many entries a submission queue takes."""
    own_models: bool = False
    """Reviews and planning sessions are asked of another model than their session's."""
    few_at_once: bool = False
    """A redaction commits its entries one by one."""

    @classmethod
    def drawn(cls, rng: Random) -> Knobs:
        return cls(
            chain_key=ChainKey("sim", b"a key of this seed's") if rng.random() < 0.3 else None,
            confirmed=rng.choice((0.9, 1.0)) if rng.random() < 0.2 else None,
            mixed=rng.random() < 0.15,
            small=rng.random() < 0.25,
            queue=rng.choice((3, 6)) if rng.random() < 0.15 else 1_000,
            own_models=(drawn := rng.random()) < 0.4,
            few_at_once=drawn * 1_000 % 1 < 0.8,
        )

    @property
    def secret(self) -> bytes:
        return self.chain_key.secret if self.chain_key is not None else b""

    @contextmanager
    def set(self) -> Iterator[None]:
        """While a simulation runs the product's bounds are this seed's."""
        before = [(module, name, getattr(module, name)) for module, name, _ in (*_SMALL, *_OFTEN_SMALL)]
        for module, name, few in _OFTEN_SMALL if self.few_at_once else ():
            setattr(module, name, few)
        for module, name, small in _SMALL if self.small else ():
            setattr(module, name, small)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)
