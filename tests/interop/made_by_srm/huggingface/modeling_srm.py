"""For `trust_remote_code=True`. The model's code is in a package: pip install "stream-recursion[hf]"."""

from srm.interop.huggingface import SRMForCausalLM, SRMHFConfig

__all__ = ["SRMForCausalLM", "SRMHFConfig"]
