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


def test_a_half_empty_engine_decodes_only_rows_in_use():
    engine = scripted_engine(slots=64, mean_tokens=5, max_tokens=40)
    engine.submit(requests(64))
    while engine.occupancy().busy:
        before = engine.occupancy().running
        engine._decoder.log.clear()
        step(engine)
        decoded = [rows for name, rows in engine._decoder.log if name == "decode"]
        assert not decoded or decoded[0] == before


def test_refilling_waits_for_the_configured_number_of_free_slots():
    engine = scripted_engine(slots=8, mean_tokens=6, max_tokens=30)
    engine._refill = 4
    engine.submit(requests(60))
    step(engine)
    while engine.occupancy().waiting >= 8:
        engine._decoder.log.clear()
        step(engine)
        prefills = [n for name, n in engine._decoder.log if name == "prefill"]
        assert all(n >= 4 for n in prefills)
