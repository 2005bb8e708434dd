"""Faulty user modules: functions and classes with one fault each, and modules that fail on import."""

MODULE = """
    import sys
    import torch

    class Task:
        '''A task that works; the others change one method.'''
        def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
        def score(self, row, completion): return 0.5
    class TaskNan(Task):
        def score(self, row, completion): return float("nan")
    class TaskOfNoScore:
        rows = Task.rows
    class TaskOfNoPrompt(Task):
        def rows(self, count): return [{"question": "2 x 1 ="}]

    def other_arguments(wanted_1, wanted_2, *, wanted_3): pass
    def raises(*given, **named):
        raise KeyError("gone")
    def exits(): pass
    def none(*given, **named): return None
    def nan(first=None, *given, completions=(), **named):
        if first is None: return [float("nan")] * len(completions)
        return first * float("nan")
    def whole_numbers(first, *given): return torch.zeros(first.shape, dtype=torch.long)
    def negative(mask_BT, prompt_B):
        weights_BT = mask_BT / mask_BT.sum()
        weights_BT[0, 0] = -weights_BT[0, 0]
        return weights_BT
    def detached(logp_BT, *given): return logp_BT.detach()
    def flat(rewards_PG): return rewards_PG.view(-1)
    def sums_to_two(mask_BT, prompt_B): return 2 * mask_BT / mask_BT.sum()
    def off_mask(mask_BT, prompt_B): return torch.ones(mask_BT.shape) / mask_BT.numel()
    class Engine:
        '''All methods of the contract; the others change one.'''
        version, work = 0, None
        def __init__(self, parts): pass
        def occupancy(self): pass
        submit = cancel = begin = swap = state = load_state = occupancy
        def poll(self, timeout_s=0.0): raise KeyError("slot")

    class TaskExits(Task):
        def score(self, row, completion): sys.exit(0)
    class TaskOfOne(Task):
        def rows(self, count):
            while True: yield {"prompt": "the same"}

    def rewarded(values):
        def reward(prompts, completions, **columns): return values
        return reward
    a_dict = rewarded({0: 1.0, 1: 0.5})
    huge = rewarded([1e300, 0.0])
    none_first = rewarded([None, 1.0])
    texts = rewarded(["1.0", "0.5"])
    too_few = rewarded([1.0])
    def raises_late(prompts, completions, **columns):
        yield 1.0
        raise KeyError("gone")

    def writing_loss(logp_BT, behavior_BT, advantages_B, mask_BT):
        loss_BT = -logp_BT * advantages_B[:, None]
        behavior_BT.zero_(); advantages_B.zero_(); mask_BT.zero_()
        return loss_BT
    def writing_advantage(rewards_PG):
        rewards_PG -= rewards_PG.mean()
        return rewards_PG
    def writing_aggregation(mask_BT, prompt_B):
        weights_BT = mask_BT / mask_BT.sum()
        mask_BT.zero_(); prompt_B.zero_()
        return weights_BT
    number = 3
"""
IMPORTS = {
    "at_import_raises": "limit = {}['limit']\n",
    "no_python": "def f(:\n",
    "needs_more": "\nimport a_module_that_is_not_there\n",
}
"""Modules with one fault each, by name."""
