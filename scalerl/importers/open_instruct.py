"""open-instruct (GRPO): its wandb history. Evaluation uses the training engines; its time cannot be separated."""

from __future__ import annotations

from scalerl.importers.dialect import HELD_OUT, OTHER, SECOND, SECONDS, TRAINING, Dialect, without

DIALECT = Dialect(
    name="open-instruct",
    marks=(r"val/num_(?:total|step)_tokens", r"learner_tokens_per_second_.+", r"time/getting_response", r"eval/scores"),
    # wandb's own step is the episode; an evaluation row may have no other step
    steps=("training_step", "episode", "_step"),
    evaluations=(
        (r"eval/pass_at_1", HELD_OUT),
        # the maximum score is 10 by default
        (r"eval/scores", SECOND),
        (r"eval/pass_at_\d+(?:_unbiased)?", OTHER),
        (r"eval/objective/.+", OTHER),
        (r"objective/(?:verifiable_correct_rate|scores)|scores", TRAINING),
    ),
    about="time/total without time/saving; evaluation shares the engines with training and cannot be separated",
    seconds=(SECONDS,),
    tokens=("val/num_total_tokens",),
    step_tokens=("val/num_step_tokens",),
    prepare=without("time/total", ("time/saving",)),
)
