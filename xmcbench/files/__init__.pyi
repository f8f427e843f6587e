from .atomic import atomic_write
from .manifest import DamagedFolder, check_manifest, checked_folder

__all__ = [
    "DamagedFolder",
    "atomic_write",
    "check_manifest",
    "checked_folder",
]
