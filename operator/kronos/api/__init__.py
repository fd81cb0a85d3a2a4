"""The resources and the plan as pydantic models: the single source of every schema.

Nothing here does I/O or knows Kubernetes clients. `job`, `fabric` and `queue` are what people write and read, `plan` is the
document that the operator hands to the trainer, `crd` turns the models into CustomResourceDefinitions.
"""

GROUP = "training.kronos.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
