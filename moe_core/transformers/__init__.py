"""Views of Hugging Face mixture-of-experts and GLU blocks: find, tap, calibrate, save and load.

Importing this package makes `AutoModelForCausalLM.from_pretrained` able to load what the methods save.
It needs the packages of the extra `moe`.
"""

from moe_core.transformers import storage as _registered  # noqa: F401
