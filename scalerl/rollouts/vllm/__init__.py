"""Generation with vLLM servers over HTTP, behind the engine contract; all vLLM-specific code is here."""
