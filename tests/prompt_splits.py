"""The prompts that a run with a configuration would read."""

from scalerl.prompts.dataset import PromptSplit, load_prompts


def prompts_of(config, tokenizer, stop=()) -> PromptSplit:
    return load_prompts(config, tokenizer, stop)
