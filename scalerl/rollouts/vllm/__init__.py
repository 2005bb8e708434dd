"""Generation by vLLM servers over HTTP, behind the engine contract: the only place that knows vLLM."""
