"""What a step costs, and so when a new request may have its first token.

Every figure errs on the early side: a request is refused because of a forecast, so it must be one
that could not have been served in time.
"""

from __future__ import annotations


class StepCostForecast:
    """seconds = fixed + each * tokens, fitted to the latest steps by least squares.

    Sums with exponential decay, so old steps fade.  While the steps seen were too much alike to
    tell the two apart, all of their cost is taken for fixed.
    """

    FADE = 0.98
    LEAST_STEPS = 8

    def __init__(self) -> None:
        self._steps = 0
        self._weight = self._tokens = self._seconds = 0.0
        self._tokens2 = self._product = 0.0
        self._widest = 0.0
        self._largest = (0, 0.0)
        """Tokens and seconds of the largest step so far. It doesn't fade: an engine core may do
        without large steps for hours."""

    def observe(self, tokens: int, seconds: float) -> None:
        """A step was settled. seconds: that the worker computed; 0: unknown, and not counted."""
        if seconds <= 0.0:
            return
        self._steps += 1
        self._widest = max(float(tokens), self._widest * self.FADE)
        if tokens > self._largest[0]:
            self._largest = tokens, seconds
        elif tokens == self._largest[0]:
            self._largest = tokens, (self._largest[1] + seconds) / 2
        self._weight = self._weight * self.FADE + 1.0
        self._tokens = self._tokens * self.FADE + tokens
        self._seconds = self._seconds * self.FADE + seconds
        self._tokens2 = self._tokens2 * self.FADE + tokens * tokens
        self._product = self._product * self.FADE + tokens * seconds

    def within(self, tokens: int, seconds: float) -> bool:
        """Whether a step of so many tokens takes no longer than that. False, too, where no step of
        half as many was seen lately: `fit` would take its cost for a small one's."""
        fitted = self.fit()
        if fitted is None or tokens > 2 * self._widest:
            return False
        return fitted[0] + fitted[1] * tokens <= seconds

    def of_prompt(self, tokens: int, budget: int) -> float:
        """Seconds that computing so many tokens takes in steps of at most `budget`; 0: unknown, as
        no step of half their size was ever seen. Steps of a few tokens say nothing of it."""
        step = min(tokens, budget)
        most, seconds = self._largest
        if step > 2 * most:
            return 0.0
        if step <= 2 * self._widest:
            return first_token_after(self, tokens, budget)
        return seconds * tokens / most

    def fit(self) -> tuple[float, float] | None:
        """(fixed, each), seconds, neither negative; None while too little is known."""
        if self._steps < self.LEAST_STEPS:
            return None
        mean_tokens, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens2 / self._weight - mean_tokens**2
        if variance <= (0.1 * mean_tokens) ** 2:
            return mean_seconds, 0.0
        slope = (self._product / self._weight - mean_tokens * mean_seconds) / variance
        each = min(max(slope, 0.0), mean_seconds / mean_tokens)
        return mean_seconds - each * mean_tokens, each


def first_token_after(cost: StepCostForecast, tokens: int, budget: int) -> float:
    """Seconds at least until `tokens` are computed, in steps of at most `budget`; 0: unknown."""
    fitted = cost.fit()
    if fitted is None:
        return 0.0
    fixed, each = fitted
    return fixed * -(-tokens // budget) + each * tokens
