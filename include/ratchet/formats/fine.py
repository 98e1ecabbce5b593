"""Moments that are finer than Python's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FineMoment(datetime):
    """A moment with digits beyond microseconds: a column of moments loses them, JSON keeps them."""

    beyond: int
    """Nanoseconds beyond the microseconds, 1 to 999."""

    @classmethod
    def of(cls, seconds: int, nanos: int) -> datetime:
        """The moment so many seconds and nanoseconds after 1970 in UTC, which is fine only if it has such digits.

        ValueError or OverflowError where there is none in the years 1 to 9999.
        """
        if not 0 <= nanos < 1_000_000_000:
            raise ValueError(nanos)
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
        if not nanos % 1000:
            return moment
        fine = cls.combine(moment.date(), moment.timetz())
        fine.beyond = nanos % 1000
        return fine

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        """With nine digits, whatever `timespec` says."""
        return super().isoformat(sep, "microseconds").replace("+", f"{self.beyond:03}+")
