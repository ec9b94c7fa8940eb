"""Names of the codecs that the compiled module offers; `make stubs` writes this file.

A config is checked before torch, and the compiled module with it, is loaded.
"""

OFFERED = (
    "svd",
    "block_random",
    "block_pca",
    "sparse_learned",
    "sparse_random",
    "identity",
    "none",
)
LEARNED = ("svd", "block_pca", "sparse_learned")  # Their projectors are fitted to gradients.
