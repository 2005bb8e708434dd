"""Tiny tokenizers of the kinds that models have, and a model that writes given tokens."""

from itertools import pairwise

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "▁"  # the space of sentencepiece


def _tokenizer(inner, specials, after=None, **more):
    if after:  # such as "$A <end>"
        ids = [(word, inner.token_to_id(word)) for word in specials]
        inner.post_processor = processors.TemplateProcessing(single=after, special_tokens=ids)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **{"pad_token": "<pad>", "eos_token": "<end>", "bos_token": "<s>", **more}
    )
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in specials], special_tokens=True)
    return tokenizer


SPECIALS = ["<pad>", "<end>", "<s>", "<think>", "</think>", "<answer>", "</answer>"]


def letters(after=None, **more):
    """One token per character; texts are joined without spaces."""
    inner = Tokenizer(models.WordLevel({w: n for n, w in enumerate([*SPECIALS, *LETTERS])}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return _tokenizer(inner, SPECIALS, after, **more)


def llama2(after="<s> $A", **more):
    """Sentencepiece with a space before the text that `decode` drops again, and bytes for unknown characters."""
    words = [*SPECIALS, *BYTES, *(SPACE if letter == " " else letter for letter in LETTERS), SPACE * 4]
    inner = Tokenizer(models.BPE({w: n for n, w in enumerate(words)}, [], byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _tokenizer(inner, SPECIALS, after, **more)


def metaspace(after=None, **more):
    """Sentencepiece's rule in one step, as T5 and newer conversions have it."""
    words = [*SPECIALS, *(SPACE if letter == " " else letter for letter in LETTERS)]
    inner = Tokenizer(models.Unigram([(word, 0.0) for word in words], 0))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    inner.decoder = decoders.Metaspace(SPACE, prepend_scheme="first", split=False)
    return _tokenizer(inner, SPECIALS, after, **more)


def byte_level(after=None, **more):
    """Bytes, as GPT-2, Llama 3 and Qwen have them."""
    words = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({w: n for n, w in enumerate(words)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return _tokenizer(inner, SPECIALS, after, **more)


KINDS = {"letters": letters, "llama2": llama2, "metaspace": metaspace, "byte-level": byte_level}


def writer(tokenizer, tokens, **config):
    """Return a model that writes each of these different tokens after the one before it, whatever came earlier."""
    size = len(tokenizer)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=size, hidden_size=size + size % 2, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
            tie_word_embeddings=False, pad_token_id=0, eos_token_id=1, bos_token_id=None, **config,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        for before, after in pairwise(tokens):
            model.lm_head.weight[after, before] = 60 / size**0.5
    return model
