"""The prompts that a run with a configuration would read."""

from scalerl.prompts.dataset import PromptSplit, load_prompts


def prompts_of(config, tokenizer, stop=()) -> PromptSplit:
    per_step = config.recipe.prompts_per_step
    return load_prompts(config.data, config.evaluation, config.scoring, per_step, tokenizer, stop)
