from .atomic import atomic_write
from .manifest import DamagedFolder, check_manifest, checked_folder
from .yaml_lines import explained

__all__ = [
    "DamagedFolder",
    "atomic_write",
    "check_manifest",
    "checked_folder",
    "explained",
]
