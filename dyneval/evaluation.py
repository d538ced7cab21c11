"""The one loop that scores and learns. Everything else in this package is given to it.

Static, dynamic and cache are predictors; tuning, gradient statistics and the command line call
this loop and sum, plot or stop as they like.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from dyneval.predictors import Predictor
from dyneval.streams import segments

LIMIT_FACTOR = 20  # a segment so many times worse than a uniform guess means divergence


def evaluate(predictor: Predictor, stream: Tensor, segment_length: int) -> Iterator[Tensor]:
    """Yield the nats of each segment of a (B, T) stream, learning from each once it is scored.

    Nothing is learned from a token before it has been scored, so the scores add up to a
    valid log-probability of the stream.
    """
    for inputs, targets in segments(stream, segment_length):
        prediction = predictor.predict(inputs)
        predictor.learn(targets)
        yield prediction.nats(targets)  # (B, n), NaN where padded
