"""One member per token: the ensemble's distribution, at one forward pass each."""

import itertools
import statistics
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from moe_core.errors import ConfigError
from moe_core.methods.me import Ensemble, Sampling, Translator, load
from moe_core.methods.me.generation import shape
from moe_core.methods.me.member import Member
from moe_core.methods.me.method import fit
from moe_core.timing import core_seconds, one_core
from tests.moe_core.families import DENSE, MIXTURES, tiny, words


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def pair():
    return [tiny("llama"), tiny("qwen3", seed=1)]


@pytest.mark.parametrize("name", [*DENSE, *MIXTURES])
@torch.no_grad()
def test_reading_late_is_reading_all(name):
    """Rows that lag by different numbers of tokens, in any order, get the scores of one whole pass."""
    model, ids = tiny(name), words(3, 20)
    rows = [0] if name == "gpt-oss" else [0, 1, 2]
    member, place = Member(model, len(rows)), [0] * len(rows)
    draw = np.random.default_rng(0)
    for _ in range(6):
        asked = sorted(draw.choice(rows, size=draw.integers(1, len(rows) + 1), replace=False).tolist())
        for row in rows:
            size = int(draw.integers(0, 3)) + (place[row] == 0)
            member.append(row, ids[row, place[row] : place[row] + size].tolist())
            place[row] += size
        for row, scores in zip(asked, member.logits(asked), strict=True):
            whole = model(input_ids=ids[row : row + 1, : place[row]]).logits[0, -1]
            assert torch.allclose(scores, whole, atol=2e-5)
    assert member.read == sum(size * times for size, times in member.lags.items()) <= sum(place)


def test_sequences_follow_the_mixtures_joint_distribution():
    """All 64 sequences of three tokens over a vocabulary of four, against their exact probabilities."""
    members = [tiny("llama", vocab_size=4), tiny("qwen3", seed=1, vocab_size=4)]
    ensemble, prompt, draws = Ensemble(members, (0.6, 0.4)), torch.tensor([[1, 2]]), 4096
    written = ensemble.generate(prompt.expand(draws, -1), 3, generator=generator(3), stop_tokens=())
    counted = Counter(map(tuple, written.tokens))
    cells = list(itertools.product(range(4), repeat=3))
    texts = torch.tensor([[1, 2, *cell] for cell in cells])
    expected = np.ones(64)
    for step in range(3):
        following = ensemble.next_dist(texts[:, : 2 + step]).double().numpy()
        expected *= following[np.arange(64), texts[:, 2 + step]]
    counts = np.array([counted[cell] for cell in cells])
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert fit(counts, expected).p >= 1e-3
    alone = np.ones(64)
    for step in range(3):
        following = Ensemble(members[:1], [1]).next_dist(texts[:, : 2 + step]).double().numpy()
        alone *= following[np.arange(64), texts[:, 2 + step]]
    assert fit(counts, alone).p < 1e-3, "the test must see the difference"


def test_a_member_without_weight_is_never_heard(pair):
    options = {"stop_tokens": (), "generator": generator(5)}
    both = Ensemble(pair, (1, 0)).generate(words(2, 4), 12, **options)
    alone = Ensemble(pair[:1], [3.0]).generate(words(2, 4), 12, **{**options, "generator": generator(5)})
    assert both == alone and {who for row in both.members for who in row} == {0}


def test_one_forward_per_token_and_nothing_is_read_twice(pair):
    ensemble = Ensemble(pair, (0.5, 0.5))
    ensemble.generate(words(1, 4), 30, generator=generator(), stop_tokens=())
    stats = ensemble.stats
    assert sum(stats.forwards) == stats.generated == 30 and min(stats.forwards) > 5
    assert all(read <= 4 + 30 for read in stats.read) and sum(stats.lags.values()) == 30
    ensemble.generate(words(1, 4), 30, mode="conventional", sampling=Sampling(), stop_tokens=())
    assert ensemble.stats.forwards == [30, 30]
    ensemble.generate(words(1, 4), 30, generator=generator(), stop_tokens=(), max_lag=2)
    # The prompt, the prompt and a token, or a lag of three at which it is caught up.
    assert set(ensemble.stats.lags) <= {1, 2, 3, 4, 5}


def test_shaping_a_member_is_not_shaping_the_mixture(pair):
    scores = torch.tensor([[2.0, 1.0, 0.5, 0.0]])
    assert shape(scores, Sampling(top_k=2))[0, 2:].tolist() == [0, 0]
    assert (shape(scores, Sampling(top_p=0.5)) > 0).tolist() == [[True, False, False, False]]
    assert torch.allclose(shape(scores, Sampling(temperature=0.5)), (scores * 2).softmax(-1))
    prompt, cold = words(1, 4), Sampling(temperature=0.5)
    each = [Ensemble([model], [1]).next_dist(prompt) for model in pair]
    component = sum(shape(p.log(), cold) for p in each) / 2
    mixture = shape(Ensemble(pair, (1, 1)).next_dist(prompt).log(), cold)
    assert (component - mixture).abs().sum() / 2 > 0.01
    with pytest.raises(ConfigError, match=r"exact mode is given .*'temperature': 0.5"):
        Ensemble(pair, (1, 1)).generate(prompt, 3, sampling=cold)
    assert len(Ensemble(pair, (1, 1)).generate(prompt, 3, mode="component", stop_tokens=()).tokens[0]) == 3


def test_a_row_stops_at_any_members_end(pair):
    pair[1].generation_config.eos_token_id = [7, 9]
    pair[0].generation_config.eos_token_id = 3
    written = Ensemble(pair, (0.5, 0.5)).generate(words(16, 4), 60, generator=generator())
    ended = [row for row in written.tokens if len(row) < 60]
    assert ended and all(row[-1] in (3, 7, 9) for row in ended)
    assert not any({3, 7, 9} & set(row[:-1]) for row in written.tokens)


def test_ensembles_survive_their_folder(pair, tmp_path):
    ensemble = Ensemble(pair, (3, 1))
    ensemble.save(tmp_path)
    again = load(tmp_path)
    assert again.weights.tolist() == [0.75, 0.25]
    assert torch.allclose(again.next_dist(words(2, 5)), ensemble.next_dist(words(2, 5)), atol=1e-6)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "member-1").config.model_type == "qwen3"
    with pytest.raises(ConfigError, match=r"nowhere/ensemble.json cannot be read as an ensemble"):
        load(tmp_path / "nowhere")


def byte_level(extra):
    """A tokenizer of all bytes and some longer tokens, as GPT-2 writes them."""
    table = bytes_to_unicode()
    written = [*table.values(), *("".join(table[b] for b in text.encode()) for text in extra)]
    vocabulary = {"<end>": 0} | {text: index + 1 for index, text in enumerate(dict.fromkeys(written))}
    merges = [
        (text[:cut], text[cut:])
        for text in written
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def sentence_pieces():
    """A tokenizer that writes spaces as SentencePiece does, and single bytes as <0xNN>."""
    texts = ["<end>", "\u2581", "\u2581the", "h", "e", "t", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = [(text, -1.0) for text in texts]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def test_tokens_are_said_in_the_bytes_of_other_vocabularies():
    first, second, third = byte_level(["the", "é", " th"]), byte_level(["he"]), sentence_pieces()
    words_of = Translator([first, second, third])
    ids = first.get_vocab()
    said = words_of.say(0, ids["the"])
    assert said[0] == (ids["the"],)
    assert second.convert_ids_to_tokens(list(said[1])) == ["t", "he"]
    assert third.convert_ids_to_tokens(list(said[2])) == ["t", "h", "e"]
    accent = words_of.say(0, ids["".join(bytes_to_unicode()[b] for b in "é".encode())])
    assert third.convert_ids_to_tokens(list(accent[2])) == ["<0xC3>", "<0xA9>"]
    space = words_of.say(2, third.get_vocab()["\u2581the"])
    assert b"".join(words_of.bytes_of(0, token) for token in space[0]) == b" the"
    poor = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ConfigError, match="the vocabulary of member 1 has no token for byte 0x74"):
        Translator([first, poor]).say(0, ids["the"])


def test_members_with_different_tokenizers_write_one_text():
    tokenizers = [byte_level(["the", " a"]), byte_level(["he", "in"])]
    members = [
        tiny("llama", vocab_size=len(tokenizers[0])),
        tiny("qwen3", seed=1, vocab_size=len(tokenizers[1])),
    ]
    ensemble = Ensemble(members, (0.5, 0.5), tokenizers)
    text = ensemble.write("the", 20, generator=generator(1))
    assert text and ensemble.write("the", 20, generator=generator(1)) == text
    assert min(ensemble.stats.forwards) > 3
    word = text[5:7]
    assert ensemble.write("the", 20, generator=generator(1), stop=[word]) == text[: text.find(word)]
    with pytest.raises(ConfigError, match="share no token ids"):
        ensemble.generate(words(1, 3), 3)


def test_what_does_not_fit_is_said(pair):
    for weights in [(1,), (0, 0), (1, -1), (float("nan"), 1)]:
        with pytest.raises(
            ConfigError, match=r"do not fit 2 models; one number >= 0 each, not all 0, is needed"
        ):
            Ensemble(pair, weights)
    with pytest.raises(ConfigError, match="vocabularies of 64, 32 tokens"):
        Ensemble([pair[0], tiny("llama", vocab_size=32)], (1, 1))
    with pytest.raises(ConfigError, match="a prompt is empty"):
        Ensemble(pair, (1, 1)).generate(torch.zeros(1, 0, dtype=torch.int64), 3)
    with pytest.raises(ConfigError, match="GptOssForCausalLM attends through a sliding window"):
        Ensemble([tiny("gpt-oss")], [1]).generate(words(2, 3), 3)
    with pytest.raises(ConfigError, match="needs a tokenizer per member"):
        Ensemble(pair, (1, 1)).write("the")


def test_the_chi_square_test_merges_what_is_rare():
    probabilities = np.array([0.5, 0.4, 0.08, *([0.02 / 50] * 50)])
    fair = np.random.default_rng(0).multinomial(1000, probabilities)
    found = fit(fair, probabilities)
    assert found.freedom == 3 and found.p > 1e-3
    assert fit(np.roll(fair, 1), probabilities).p < 1e-6


@pytest.mark.slow
def test_two_equal_members_are_one_point_six_times_as_fast():
    model = tiny("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    ensemble, seconds = Ensemble([model, model], (0.5, 0.5)), {"exact": [], "conventional": []}
    for seed, (mode, times) in itertools.product(range(7), seconds.items()):
        with one_core():
            start = core_seconds()
            shaped = {"sampling": Sampling()} if mode == "conventional" else {}
            ensemble.generate(words(1, 4), 60, mode=mode, generator=generator(seed), stop_tokens=(), **shaped)
            times.append(core_seconds() - start)
    assert statistics.median(seconds["conventional"]) / statistics.median(seconds["exact"]) >= 1.6
