"""Generation with vLLM servers over HTTP, behind the engine contract; all vLLM-specific code is here, over httpx."""

from importlib.util import find_spec

from scalerl.core.errors import ConfigError

if find_spec("httpx") is None:
    raise ConfigError(
        "placement.engine: 'vllm' needs httpx and, unless placement.vllm_python has it, vLLM in this environment: pip "
        "install 'scalerl[cluster]'"
    )
