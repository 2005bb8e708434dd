"""Unusable tokenizers and chat templates: each is refused with its problem, and no code of the model runs."""

import json
import resource
import time

import pytest

from robustness.damage import OPENED, gone, text
from scalerl.core.errors import ConfigError
from scalerl.training.models.loading import load_tokenizer
from scalerl.training.models.policy import check_vocabulary, load_policy, stop_tokens
from scalerl.training.models.template import check_template


def own_tokenizer(model):
    values = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    text("tokenizer_config.json", json.dumps(values))(model)
    text("own.py", f"open({OPENED!r}, 'w')")(model)
    gone("tokenizer.json", "config.json")(model)


TOKENIZERS = [
    ("none", gone("tokenizer.json", "tokenizer_config.json")),
    ("empty", text("tokenizer.json", "")),
    ("an unknown model", text("tokenizer.json", '{"model": {"type": "Odd", "vocab": {}}}')),
    ("a configuration that is no JSON", text("tokenizer_config.json", "{")),
    ("custom code", own_tokenizer),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), TOKENIZERS, ids=[name for name, _ in TOKENIZERS])
def test_an_unreadable_tokenizer_is_refused(model, name, change):
    change(model)
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer("m")
    assert not (model.parent / OPENED).exists()


@pytest.mark.parametrize("length", ["x", "512", [512], {"a": 1}, True])
def test_a_length_that_is_no_number_is_refused(model, length):
    file = model / "tokenizer_config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "model_max_length": length}))
    with pytest.raises(ConfigError, match=r"tokenizer_config.json has model_max_length .*allowed: a number of tokens"):
        load_tokenizer("m")


def test_a_tokenizer_that_fails_at_a_text_is_refused(model, monkeypatch):
    def fails(self, *words, **named):
        raise ValueError("bad merges")

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.__call__", fails)
    with pytest.raises(ConfigError, match=r"found no tokenizer.*bad merges"):
        load_tokenizer("m")


def test_a_tokenizer_larger_than_the_model_is_refused(model):
    tokenizer = load_tokenizer("m")
    tokenizer.add_tokens([f"<extra {n}>" for n in range(40)])
    tokenizer.save_pretrained("m")
    with pytest.raises(ConfigError, match="48 embeddings"):
        check_vocabulary(load_tokenizer("m"), load_policy("m"), "m")


@pytest.mark.parametrize("eos", [99999, -1, 48, [1, 48]])
def test_an_end_token_that_the_model_does_not_have_is_refused(model, eos):
    policy, tokenizer = load_policy("m"), load_tokenizer("m")
    policy.model.generation_config.eos_token_id = eos
    with pytest.raises(ConfigError, match="0 to 47"):
        stop_tokens(policy, tokenizer)


def test_a_model_without_an_end_token_is_refused(model):
    policy, tokenizer = load_policy("m"), load_tokenizer("m")
    assert stop_tokens(policy, tokenizer) == tuple(sorted({1, tokenizer.eos_token_id}))
    policy.model.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no end token"):
        stop_tokens(policy, tokenizer)


TEMPLATES = [
    ("raises", "{{ raise_exception('only tools') }}", "TemplateError: only tools"),
    ("cannot be parsed", "{% for %}", "TemplateSyntaxError"),
    ("an undefined function", "{{ strftime_then(1) }}", "UndefinedError: 'strftime_then' is undefined"),
    ("reaches for Python", "{{ messages.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    ("leaves the question out", "Hello {{ question }}", "renders every question as 'Hello '"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "template", "message"), TEMPLATES, ids=[name for name, *_ in TEMPLATES])
def test_an_invalid_chat_template_is_refused(model, name, template, message):
    tokenizer = load_tokenizer("m")
    tokenizer.chat_template = template
    with pytest.raises(ConfigError) as caught:
        check_template(tokenizer)
    assert message in str(caught.value) and "set data.chat_template = 'never'" in str(caught.value)


ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a power": "{{ messages[0]['content'] and 9 ** (9 ** 9) }}",
    "a text of 100 GB": "{{ messages[0]['content'] * 10 ** 11 }}",
    "a text of 10 MB": "{{ messages[0]['content'] * 10 ** 6 }}",
}
"""Templates that would use all the time or memory of the machine."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the alarm during a collection
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_refused_within_its_time_limit(model, name, monkeypatch):
    monkeypatch.setattr("scalerl.training.models.template.TEMPLATE_S", 0.3)
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = ENDLESS[name]
    began, limits = time.process_time(), resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ConfigError, match="chat template"):
        check_template(tokenizer)
    assert time.process_time() - began < 5 and resource.getrlimit(resource.RLIMIT_AS) == limits
