"""Times of the samples of a column, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ray_h5.manifest.row_requests import by_part

LIKE_A_NUMBER = 1e-6
"""Parts of a sample: times in floats are not exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of the samples of a column in each recording, ascending: at a rate, or listed.

    Attributes
    ----------
    counts : numpy.ndarray
        int64: the samples of each recording.
    steps : numpy.ndarray
        float64: the time of a sample; where times are listed, in the median.
    rates, starts : numpy.ndarray
        float64: samples a second, and the time of the first one; empty where times are listed.
    listed : numpy.ndarray
        float64: the times of all samples, one recording after the other; empty for a rate.
    """

    counts: np.ndarray
    steps: np.ndarray
    rates: np.ndarray = field(default_factory=lambda: np.empty(0))
    starts: np.ndarray = field(default_factory=lambda: np.empty(0))
    listed: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def is_regular(self) -> bool:
        """Whether samples are at a rate."""
        return len(self.rates) == len(self.counts)

    def at(self, recordings: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the times of samples."""
        if self.is_regular:
            return self.starts[recordings] + samples / self.rates[recordings]
        return self.listed[self._firsts[recordings] + samples]

    def first(self, recordings: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return the first sample that is not before each time, of arrays of one shape."""
        if self.is_regular:
            steps = np.ceil((times - self.starts[recordings]) * self.rates[recordings] - LIKE_A_NUMBER)
            return np.clip(steps, 0, self.counts[recordings]).astype(np.int64)
        firsts, flat = self._firsts, np.ravel(times)
        steps = np.empty(len(flat), np.int64)
        for recording, places in by_part(np.ravel(recordings)):
            own = self.listed[firsts[recording] : firsts[recording] + self.counts[recording]]
            steps[places] = np.searchsorted(own, flat[places] - self.steps[recording] * LIKE_A_NUMBER)
        return steps.reshape(np.shape(times))

    @property
    def _firsts(self) -> np.ndarray:
        return np.cumsum(self.counts) - self.counts

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(array.nbytes for array in (self.counts, self.steps, self.rates, self.starts, self.listed))
