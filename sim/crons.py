"""When a cron job of arq's runs next: told at once, where arq looks at every second on the way.

Knows jobs that run at some minutes and seconds of every hour, as upkeep's do, and refuses others.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta

from arq.cron import CronJob
from arq.typing import OptionType

HOUR_S = 3600


class Hourly:
    """A job's moments in an hour."""

    def __init__(self, job: CronJob) -> None:
        if (job.month, job.day, job.weekday, job.hour) != (None, None, None, None):
            raise ValueError(f"{job.name} does not run in every hour, and the simulator does not know when")
        minutes, seconds = _among(job.minute), _among(job.second)
        self._at_s = [60 * minute + second for minute in minutes for second in seconds]
        self._microsecond = job.microsecond

    def after(self, now: datetime) -> datetime:
        """The first moment in a later second than `now`; the same as arq's `next_cron`."""
        hour = now.replace(minute=0, second=0, microsecond=self._microsecond)
        later = bisect_right(self._at_s, 60 * now.minute + now.second)
        at_s = self._at_s[later] if later < len(self._at_s) else HOUR_S + self._at_s[0]
        return hour + timedelta(seconds=at_s)


def _among(option: OptionType) -> list[int]:
    """The minutes, or the seconds, that an option of a cron job names."""
    if option is None:
        return list(range(60))
    return [option] if isinstance(option, int) else sorted(option)
