"""open-instruct (GRPO): its wandb history. Evaluation runs on the training engines; its time cannot be told apart."""

from __future__ import annotations

from scalerl.importers.dialect import HELD_OUT, OTHER, SECOND, SECONDS, TRAINING, Dialect, without

DIALECT = Dialect(
    name="open-instruct",
    marks=(r"val/num_(?:total|step)_tokens", r"learner_tokens_per_second_.+", r"time/getting_response", r"eval/scores"),
    # wandb's own step is the episode there; an evaluation row may have nothing else
    steps=("training_step", "episode", "_step"),
    evaluations=(
        (r"eval/pass_at_1", HELD_OUT),
        # a score is worth 10 there, unless the run says otherwise
        (r"eval/scores", SECOND),
        (r"eval/pass_at_\d+(?:_unbiased)?", OTHER),
        (r"eval/objective/.+", OTHER),
        (r"objective/(?:verifiable_correct_rate|scores)|scores", TRAINING),
    ),
    about="time/total without time/saving; evaluation shares the engines with training and cannot be told apart",
    seconds=(SECONDS,),
    tokens=("val/num_total_tokens",),
    step_tokens=("val/num_step_tokens",),
    prepare=without("time/total", ("time/saving",)),
)
