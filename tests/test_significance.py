import math
import re
import time

import numpy as np
import pytest

from dyneval.significance import MANY, MOST, choose_block_length, compare


def autoregressive(random, count, rho):
    """A series in which each number is ρ times the one before it and new noise."""
    memory = rho ** np.arange(math.ceil(40 / -math.log(rho)))
    return np.convolve(random.standard_normal(count + len(memory) - 1), memory, "valid")


def alternating(lengths):
    """The number of each token's document, given their lengths."""
    return np.repeat(np.arange(len(lengths)) % 2, lengths)


# Calibration


def test_the_interval_is_calibrated():
    """AR(1), ρ = .5: 95% intervals of 2,000 texts of 10,000 tokens hold what is true of all."""
    random = np.random.default_rng(1)
    covered = wrong = 0
    for seed in range(2000):
        noise = autoregressive(random, 10_000, 0.5)
        found = compare(9 + noise, np.full(10_000, 9.0), resamples=399, seed=seed)
        covered += found.nats.low <= 0 <= found.nats.high
        wrong += found.p_value <= 0.05
    assert 0.93 <= covered / 2000 <= 0.97
    assert 0.03 <= wrong / 2000 <= 0.07


def test_blocks_of_one_token_find_what_is_not_there():
    """They take neighbours for strangers, and so the interval for narrower than it is."""
    random = np.random.default_rng(2)
    wrong = 0
    for _ in range(200):
        noise = autoregressive(random, 1000, 0.5)
        found = compare(9 + noise, np.full(1000, 9.0), block_length=1, resamples=199)
        wrong += found.significant
    assert wrong / 200 > 0.15  # 1.96 is 1.13 of the true standard errors: 26%


@pytest.mark.parametrize("count", [MANY, 3 * MANY])
def test_documents_that_differ_as_wholes(count):
    """Blocks within them do not see that; whole documents do."""
    random = np.random.default_rng(3)
    covered = {None: 0, 5: 0}
    for _ in range(400):
        lengths = random.integers(20, 80, count)
        noise = np.repeat(random.standard_normal(count), lengths)
        noise += random.standard_normal(len(noise))
        second = np.full(len(noise), 9.0)
        for block_length in covered:
            found = compare(
                9 + noise,
                second,
                documents=alternating(lengths),
                block_length=block_length,
                resamples=399,
            )
            assert (found.documents, found.block_length) == (count, block_length)
            covered[block_length] += found.nats.low <= 0 <= found.nats.high
    assert 0.92 <= covered[None] / 400 <= 0.98
    assert covered[5] / 400 < 0.5


@pytest.mark.parametrize(("name", "truth"), [("bits", 0.1), ("perplexity", 1 - math.exp(-0.2))])
def test_the_interval_of_a_relative_gain_is_calibrated(name, truth):
    """The second predictor needs 1.8 nats per token in the mean, and the first needs 2."""
    random = np.random.default_rng(4)
    covered = 0
    for seed in range(400):
        first, second = random.exponential((2.0, 1.8), (500, 2)).T
        found = compare(first, second, resamples=399, seed=seed)
        covered += getattr(found, name).low <= truth <= getattr(found, name).high
    assert 0.92 <= covered / 400 <= 0.98


# The same, written plainly

RESAMPLES = 399  # the ends of 95% are the 10th from below and from above


def plainly(first, second, sizes, draw, units, freedom, seed):
    """Return the interval of nats per token, of the total and of the perplexity, token by token."""
    random = np.random.default_rng(seed)
    picked = [draw(random) for _ in range(RESAMPLES)]
    widening = np.sqrt(units / random.chisquare(freedom, RESAMPLES))
    found = []
    for below in (np.ones(len(first)), first, sizes):
        mean = (first.sum() - second.sum()) / below.sum()
        drawn = [(first[k].sum() - second[k].sum()) / below[k].sum() for k in picked]
        ends = sorted(
            mean + (each - mean) * wide for each, wide in zip(drawn, widening, strict=True)
        )
        found.append((mean, ends[9], ends[-10]))
    spread = np.std([(first[k] - second[k]).mean() for k in picked]) * math.sqrt(units / freedom)
    return [*found[:2], tuple(1 - math.exp(-value) for value in found[2]), spread]


def assert_equal(found, expected):
    assert found.nats == pytest.approx(expected[0], rel=1e-9)
    assert found.bits == pytest.approx(expected[1], rel=1e-9)
    assert found.perplexity == pytest.approx(expected[2], rel=1e-9)


@pytest.mark.parametrize("lengths", [[53], [20, 3, 30]])
@pytest.mark.parametrize("length", [1, 4, 7])
def test_blocks_go_round_within_their_document(lengths, length):
    random = np.random.default_rng(5)
    first, second = random.exponential(2.0, (2, sum(lengths)))
    sizes = random.integers(1, 5, len(first))

    def draw(random):
        tokens, begin = [], 0
        blocks = [min(length, n - k) for n in lengths for k in range(0, n, length)]
        chances = iter(zip(random.random(len(blocks)), blocks, strict=True))
        for n in lengths:
            for _ in range(0, n, length):
                chance, size = next(chances)
                tokens += [begin + (int(chance * n) + k) % n for k in range(size)]
            begin += n
        return np.array(tokens)

    units = sum(max(1, n // length) for n in lengths)
    expected = plainly(first, second, sizes, draw, units, units - len(lengths), 6)
    found = compare(
        first,
        second,
        sizes=sizes,
        documents=alternating(lengths),
        block_length=length,
        resamples=RESAMPLES,
        seed=6,
    )
    assert_equal(found, expected)
    assert found.standard_error == pytest.approx(expected[3], rel=1e-9)
    assert (found.tokens, found.documents) == (53, len(lengths))


def test_documents_are_drawn_whole():
    random = np.random.default_rng(7)
    lengths = random.integers(1, 9, 25)
    first, second = random.exponential(2.0, (2, lengths.sum()))
    parts = np.split(np.arange(lengths.sum()), np.cumsum(lengths)[:-1])

    def draw(random):
        return np.concatenate([parts[int(chance * 25)] for chance in random.random(25)])

    ones = np.ones(len(first))
    expected = plainly(first, second, ones, draw, 25, 24, 8)
    found = compare(first, second, documents=alternating(lengths), resamples=RESAMPLES, seed=8)
    assert_equal(found, expected)
    assert found.standard_error == pytest.approx(expected[3], rel=1e-9)


# What is exactly known


@pytest.mark.parametrize("documents", [None, alternating([100] * 30)])
def test_a_constant_difference_is_certain(documents):
    second = np.random.default_rng(9).exponential(2.0, 3000)
    found = compare(second + 0.25, second, documents=documents)
    assert found.nats == pytest.approx([0.25] * 3, rel=1e-9)
    assert found.perplexity == pytest.approx([1 - math.exp(-0.25)] * 3, rel=1e-9)
    assert found.standard_error == pytest.approx(0, abs=1e-9)
    assert found.significant
    assert found.p_value == 2 / 2001
    assert found.bits.value == pytest.approx(0.25 / (second.mean() + 0.25))
    assert found.bits.low < found.bits.value < found.bits.high  # of so much in all


def test_no_difference_is_no_significance():
    nats = np.random.default_rng(10).exponential(2.0, 3000)
    found = compare(nats, nats)
    assert found.nats == found.bits == found.perplexity == (0, 0, 0)
    assert (found.p_value, found.significant) == (1, False)


def test_the_other_way_round_is_a_loss():
    """Of the same resamples: the differences change their signs, and no more."""
    first, second = np.random.default_rng(11).exponential((2.0, 1.5), (900, 2)).T
    there, back = compare(first, second), compare(second, first)
    assert there.nats.value > 0 > back.nats.value
    assert (-back.nats.value, -back.nats.high, -back.nats.low) == pytest.approx(there.nats)
    assert back.p_value == there.p_value
    assert back.block_length == there.block_length


def test_a_seed_gives_the_same_digits():
    first, second = np.random.default_rng(12).exponential(2.0, (2, 900))
    assert compare(first, second) == compare(list(first), second, seed=0)
    assert compare(first, second, seed=1) != compare(first, second)


def test_a_higher_level_is_a_wider_interval():
    first, second = np.random.default_rng(13).exponential(2.0, (2, 900))
    narrow, wide = (compare(first, second, level=level).nats for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_gains_that_are_no_numbers_are_none():
    """A perplexity beyond all, and a total that is not above nothing: densities may have one."""
    worse = compare(np.ones(9), np.full(9, 1e4))
    assert worse.perplexity is None
    assert worse.nats.value == 1 - 1e4
    assert compare(np.full(9, -1.0), np.full(9, -2.0)).bits is None
    no_words = compare(np.ones(9), np.ones(9), sizes=np.zeros(9))
    assert no_words.perplexity is None
    assert no_words.bits == (0, 0, 0)


# The length of blocks


def test_the_block_length_is_that_of_theory():
    """(2 G² / D)^⅓ N^⅓ with G = 2ρ/(1-ρ)², g(0) = (1+ρ)/(1-ρ) and D = 4/3 g(0)²."""
    random = np.random.default_rng(14)
    for rho in (0.5, 0.8):
        found = [choose_block_length(autoregressive(random, 10_000, rho)) for _ in range(30)]
        slope, spectrum = 2 * rho / (1 - rho) ** 2, (1 + rho) / (1 - rho)
        theory = (2 * slope**2 / (4 / 3 * spectrum**2) * 10_000) ** (1 / 3)
        assert np.mean(found) == pytest.approx(theory, rel=0.1)


def test_white_noise_has_the_shortest_blocks():
    random = np.random.default_rng(15)
    found = [choose_block_length(random.standard_normal(MOST)) for _ in range(30)]
    assert np.median(found) <= 3
    assert choose_block_length(random.standard_normal(50 * MOST)) == 50
    assert choose_block_length(np.ones(MOST)) == choose_block_length(np.ones(2)) == 1


def test_dependence_across_documents_is_none():
    """Where every document has a mean of its own, its tokens are strangers all the same."""
    random = np.random.default_rng(16)
    documents = alternating([400] * 5)
    levels = np.repeat(random.standard_normal(5) * 9, 400)
    series = random.standard_normal(2000) + levels
    assert choose_block_length(series) > 50
    assert choose_block_length(series, documents) < 10


@pytest.mark.parametrize("rho", [0.999, -0.9])
def test_extreme_dependence_leaves_several_blocks(rho):
    random = np.random.default_rng(17)
    noise = random.standard_normal(900)
    for k in range(1, 900):
        noise[k] += rho * noise[k - 1]
    assert 1 <= choose_block_length(noise) <= 90
    for count in (2, 3, 4, 7, 20):
        assert 1 <= choose_block_length(noise[:count]) <= max(1, count // 3)
        assert math.isfinite(compare(9 + noise[:count], np.full(count, 9.0)).standard_error)


def test_a_million_tokens_take_about_a_second():
    first, second = np.random.default_rng(18).exponential(2.0, (2, 10**6))
    began = time.process_time()
    assert compare(first, second).block_length == 10**6 // MOST
    assert time.process_time() - began < 3


def test_very_many_documents_are_drawn_in_groups():
    lengths = np.full(10 * MOST, 3)
    first, second = np.random.default_rng(19).exponential(2.0, (2, lengths.sum()))
    found = compare(first, second, documents=alternating(lengths))
    assert found.documents == 10 * MOST
    assert found.standard_error == pytest.approx(
        np.std(first - second) / len(first) ** 0.5, rel=0.1
    )


# Mistakes


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("first predictor scored 9 tokens and the second 8; compare what both", {"second": 8}),
        ("1 tokens show no interval", {"first": 1, "second": 1}),
        ("4 sizes are given for 9 tokens; give one for each", {"sizes": np.ones(4)}),
        ("documents are 4, and the tokens 9; give one for each", {"documents": np.ones(4)}),
        ("blocks of 5 cannot be drawn from 9 tokens (documents: 1)", {"block_length": 5}),
        ("blocks of 0 cannot be drawn", {"block_length": 0}),
        ("cannot be drawn from 9 tokens (documents: 9)", {"documents": np.arange(9)}),
        ("2000 resamples show no interval of level 1.5", {"level": 1.5}),
        ("20 resamples show no interval of level 0.95", {"resamples": 20}),
    ],
)
def test_mistakes(message, changes):
    nats = {name: np.ones(changes.pop(name, 9)) for name in ("first", "second")}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        compare(**nats, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["first", "second", "sizes"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_named_by_its_place(name, value):
    values = {each: np.ones(9) for each in ("first", "second", "sizes")}
    values[name][3:5] = value
    with pytest.raises(ValueError, match=f"{name} holds {value} at token 4; give a number"):
        compare(values["first"], values["second"], sizes=values["sizes"])
