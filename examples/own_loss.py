"""A custom loss with parameters: CISPO with a lower and an upper bound of the ratio. A tiny model trains with it.

python examples/own_loss.py
"""

from tiny_model import QUICK, show, tiny_model, words

import scalerl

LETTERS = "abcd"


def two_sided(logp_BT, behavior_BT, advantages_B, mask_BT, lowest=0.8, highest=1.2):
    """Return -sg(clip(ratio, lowest, highest)) * A * log pi per token, and a mask of the clipped tokens.

    Legend: B rollouts, T tokens. `logp_BT` has the gradient; `behavior_BT` is from the policy that sampled the tokens.
    """
    ratio_BT = (logp_BT.detach() - behavior_BT).clamp(-20, 20).exp()
    loss_BT = -ratio_BT.clamp(lowest, highest) * advantages_B[:, None] * logp_BT
    return loss_BT, (ratio_BT < lowest) | (ratio_BT > highest)


if __name__ == "__main__":
    run = scalerl.train(
        model=tiny_model(LETTERS + ">"),
        data=words(LETTERS, 100),
        reward={"function": "own_reward:letters", "params": {"letter": "b"}},
        recipe__loss={"kind": "custom", "function": "own_loss:two_sided", "params": {"highest": 1.1}},
        progress=False,
        **QUICK,
    )
    show(run, ["reward", "capped_share", "staleness_mean"])
    print(run)
