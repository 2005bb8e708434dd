from scripted_engine import scripted_engine

from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import Request, step


def requests(n):
    return [Request((i, 0), (1, 2), stream_key("slots", i)) for i in range(n)]


def test_no_slot_is_idle_while_prompts_wait():
    engine = scripted_engine(slots=4, mean_tokens=5, max_tokens=20)
    engine.submit(requests(30))
    while engine.occupancy().waiting >= 4:
        before = engine.work.tokens
        step(engine)
        # every tick gives all four slots a token, even if sequences ended before
        assert engine.work.tokens - before == 4
